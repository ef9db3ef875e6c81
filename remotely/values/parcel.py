"""A large value that crosses to another machine as one piece of memory.

    the sender    lays the pickle and its buffers out as one piece, and gives it a name
    a store       holds the piece in shared memory; it looks at nothing in it
    the message   carries a Parcel in the place of the value
    the receiver  cuts the piece up again

The name is 32 random bytes.  Only those who may have the value are told it, over CURVE.
"""

import secrets
from collections.abc import Iterator, Sequence

import msgspec

from remotely.protocol.control import BulkAddress
from remotely.protocol.numbers import NAME_BYTES
from remotely.values.codec import Encoded

SEND_FROM_BYTES = 1 << 19  # a smaller value is as fast through the actor's own socket
ALIGNMENT = 64  # of each buffer, as numpy and torch like it
_PADDING = memoryview(bytes(ALIGNMENT))


class Parcel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What travels in place of a value that is, or stays, in a store.

    pieces   start and length of the pickle and of each of its buffers
    store    where to fetch it; None if it is in the store of the reader's machine
    of       for people: of which actor's method it is the result
    """

    value: bytes
    nbytes: int
    pieces: list[tuple[int, int]]
    store: BulkAddress | None = None
    of: str = ""


def new_name() -> bytes:
    return secrets.token_bytes(NAME_BYTES)


def parcel_of(encoded: Encoded, store: BulkAddress | None = None, of: str = "") -> Parcel:
    """Return a new parcel for a value."""
    pieces = []
    at = 0
    for nbytes in (sum(map(len, encoded.pieces)), *(b.nbytes for b in encoded.buffers)):
        pieces.append((at, nbytes))
        at += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return Parcel(new_name(), at, pieces, store, of)


def segments(encoded: Encoded) -> Iterator[memoryview]:
    """Yield what the piece of memory consists of, in order."""
    for part in ([memoryview(piece) for piece in encoded.pieces], *([b] for b in encoded.buffers)):
        nbytes = 0
        for view in part:
            nbytes += view.nbytes
            yield view
        if padding := -nbytes % ALIGNMENT:
            yield _PADDING[:padding]


def stripe_of(segments: Sequence[memoryview], start: int, nbytes: int) -> list[memoryview]:
    """Return the part of these segments that begins at `start`."""
    found = []
    end = start + nbytes
    at = 0
    for view in segments:
        low, high = max(start, at), min(end, at + view.nbytes)
        if low < high:
            found.append(view[low - at : high - at])
        at += view.nbytes
    return found


def write(encoded: Encoded, into: memoryview) -> None:
    """Lay a value out."""
    at = 0
    for view in segments(encoded):
        into[at : at + view.nbytes] = view
        at += view.nbytes


def cut(parcel: Parcel, memory: memoryview) -> tuple[memoryview, Sequence[memoryview]]:
    """Return the pickle and its buffers."""
    payload, *buffers = (memory[start : start + nbytes] for start, nbytes in parcel.pieces)
    return payload, buffers
