"""Owned values: pickles that share no memory with the user's objects.

`codec.encode` returns views of the value's own memory, without a copy.  They are safe until the
function that was given the value returns, since the caller cannot change it before then.  A pickle
that is kept longer must be Owned: that of a queued or retried call, of the constructor of an actor
that may be restarted, and of `put`.  So each attempt sends the same bytes, even if the value was
changed in between.  Queues accept only Owned, which the type checker enforces.

A large value is copied into the arena, from where it can be lent to a process of this machine
without a further copy.
"""

from collections.abc import Sequence

from remotely.machine.shield import shield
from remotely.values import arena
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded


class Owned(Encoded):
    """An encoded value in memory of its own.  Create it with `own`."""

    __slots__ = ()


def own(encoded: Encoded, *, lends: bool = True) -> Owned:
    """Return a copy of an encoded value, or the value itself if it is already owned.

    It arrives writable.  With `lends=False` the copy is not placed in the arena, for an engine that
    does not use it.
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


def own_each(encoded: Sequence[Encoded], *, lends: bool = True) -> list[Owned]:
    """Own several values; one that is in the list repeatedly is copied once."""
    copies = {id(each): own(each, lends=lends) for each in encoded}
    return [copies[id(each)] for each in encoded]


NOTHING = own(Encoded((), ()))
