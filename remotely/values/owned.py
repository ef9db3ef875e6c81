"""Owned values: pickles that share no memory with any object of the user.

What `codec.encode` returns may lend the memory of the value itself, which costs nothing.  That is
good until the function returns that was given the value: the caller cannot change it before.
Whatever is kept for later is Owned: a call that waits to leave or may be repeated, what makes an
actor's next life, and what `put` returns.  So each try sends the same bytes, whatever is done to
the value meanwhile.  Queues take Owned and nothing else; the type checker sees to that.

A large value is copied into the arena, where it can be lent to a process of this machine without a
further copy.
"""

from remotely.machine.shield import shield
from remotely.values import arena
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded


class Owned(Encoded):
    """An encoded value of its own.  Only `own` makes one."""

    __slots__ = ()


def own(encoded: Encoded, *, lends: bool = True) -> Owned:
    """Return a copy of a value, writable where it arrives.  What is owned already is not copied.

    Without `lends` it stays out of the arena, for an engine that shares no memory of ours.
    """
    if isinstance(encoded, Owned):
        return encoded
    memory = arena.ours() if lends and encoded.nbytes >= SHARE_FROM_BYTES else None
    if memory is not None:
        with shield:
            if (placed := memory.place(encoded)) is not None:
                views = memory.pin(placed)
                payload = views.pop(0) if placed.has_payload else bytes(encoded.payload)
                return Owned((payload,), views, encoded.travelling)
    copies = [memoryview(bytearray(buffer)) for buffer in encoded.buffers]
    return Owned((bytes(encoded.payload),), copies, encoded.travelling)


NOTHING = own(Encoded((), ()))
