"""A value that is pickled once and passed many times."""

from typing import Any

from remotely import arena, codec
from remotely.arena import SHARE_FROM_BYTES, Placed
from remotely.codec import Encoded


class Ref:
    """Pass it as an argument: it arrives as the value, as it was when it was put.

    A large one lies in the arena for as long as the ref lives: passing it to an actor of this
    machine copies nothing.
    """

    def __init__(self, encoded: Encoded) -> None:
        self._arena = arena.ours() if encoded.nbytes >= SHARE_FROM_BYTES else None
        self._placed: Placed | None = self._arena.place(encoded) if self._arena else None
        if self._arena and self._placed:
            self._views = self._arena.pin(self._placed)
            rest = self._views[1:] if self._placed.has_payload else self._views
            self._payload = self._views[0] if self._placed.has_payload else encoded.payload
            self._buffers = rest
        else:
            self._payload = encoded.payload
            self._buffers = [memoryview(bytes(buffer)) for buffer in encoded.buffers]

    def __reduce__(self) -> tuple[Any, ...]:
        return codec.decode_parts, codec.parts(self._payload, self._buffers)

    def __del__(self) -> None:
        if (placed := getattr(self, "_placed", None)) and self._arena:
            self._arena.unpin(self._views)
            self._arena.let_go(placed)
