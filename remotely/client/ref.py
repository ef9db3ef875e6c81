"""A value that is pickled once and passed many times."""

from typing import Any

from remotely.futures.shield import shield
from remotely.values import arena, codec, in_transit
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded


class Ref:
    """Pass it as an argument: it arrives as the value was when you put it.

    A large value stays in the arena as long as the ref lives, or a message with it still has to be
    sent.  Passing it to an actor on this machine copies nothing.
    """

    def __init__(self, encoded: Encoded) -> None:
        self._travelling = encoded.travelling
        memory = arena.ours() if encoded.nbytes >= SHARE_FROM_BYTES else None
        with shield:
            placed = memory.place(encoded) if memory else None
        if memory and placed:
            self._buffers = memory.pin(placed)
            self._payload = self._buffers.pop(0) if placed.has_payload else encoded.payload
        else:
            self._payload = encoded.payload
            self._buffers = [memoryview(bytes(buffer)) for buffer in encoded.buffers]

    def __reduce__(self) -> tuple[Any, ...]:
        in_transit.note(self._travelling)
        return codec.decode_parts, codec.parts(self._payload, self._buffers)
