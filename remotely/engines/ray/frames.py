"""Messages as Ray carries them: the head as bytes, and large buffers out of band beside it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from remotely.values import codec

ROUTE_BYTES = 8  # what names a client, before each of its messages

# Instead of a reply:
NOT_RUN = b""  # the actor has ended, and this call did not run
LATER = b"later"  # the object is still being made; the reply is to be asked for

Entries = Sequence[Any]  # replies of other calls, or errors, in the place of arguments
Frames = Sequence[bytes | memoryview]


def sendable(frames: Frames) -> Any:
    """Return what Ray is given: bytes go as they are, and buffers out of band."""
    head, *buffers = frames
    head = bytes(head)
    return (head, codec.out_of_band(buffers)) if buffers else head


def received(data: Any) -> list[bytes | memoryview]:
    """Return the frames of what Ray has brought.  Buffers are copied: those of Ray's store are
    read-only, and shared."""
    if isinstance(data, bytes):
        return [data]
    head, buffers = data
    return [head, *map(writable, buffers)]


def writable(buffer: Any) -> memoryview:
    """Return a copy.  numpy asks for large pages, which makes it faster than a bytearray."""
    flat = memoryview(buffer).cast("B")
    return np.frombuffer(flat, np.uint8).copy().data if flat.nbytes else flat
