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

from remotely.values import arena
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded


class Owned(Encoded):
    """An encoded value in memory of its own.  Create it with `own`.

    counted_bytes  what it takes in memory; not what a ref in it keeps there anyway
    """

    __slots__ = ("counted_bytes",)

    counted_bytes: int


def own(encoded: Encoded, *, lends: bool = True) -> Owned:
    """Return a copy of an encoded value, or the value itself if it is already owned.

    It arrives writable.  With `lends=False` the copy is not placed in the arena, for an engine that
    does not use it.
    """
    if isinstance(encoded, Owned):
        return encoded
    memory = arena.ours() if lends and encoded.nbytes >= SHARE_FROM_BYTES else None
    if memory is not None and (placed := memory.place(encoded)) is not None:
        payload, views = placed.pin()
        pieces = (bytes(encoded.payload) if payload is None else payload,)
        owned = Owned(pieces, views, encoded.travelling)
        owned.counted_bytes = counted_bytes(encoded)
        return owned
    copies = [memoryview(bytearray(buffer)) for buffer in encoded.buffers]
    owned = Owned((bytes(encoded.payload),), copies, encoded.travelling)
    owned.counted_bytes = owned.nbytes
    return owned


def counted_bytes(encoded: Encoded) -> int:
    """Return how much memory a value takes in the arena, beside what refs in it keep there."""
    if isinstance(encoded, Owned):
        return encoded.counted_bytes
    memory = arena.ours()
    return encoded.nbytes - (0 if memory is None else memory.pinned_bytes(encoded))


def own_each(encoded: Sequence[Encoded], *, lends: bool = True) -> list[Owned]:
    """Own several values; one that is in the list repeatedly is copied once."""
    copies = {id(each): own(each, lends=lends) for each in encoded}
    return [copies[id(each)] for each in encoded]


NOTHING = own(Encoded((), ()))
