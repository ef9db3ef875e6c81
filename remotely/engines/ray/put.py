"""A value that is pickled once, kept in Ray's object store, and passed many times."""

from typing import Any

import ray

from remotely.engines.ray.frames import received, sendable
from remotely.futures.reference import Put
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec, in_transit, references


class PlasmaRef(Put):
    """Pass it as an argument: it arrives as the value was when you put it."""

    def __init__(self, encoded: codec.Encoded) -> None:
        self._travelling = encoded.travelling
        # As the reply to a call: where it arrives, nobody need know which of the two it is.
        frames = wire.encode(Kind.RESULT, 0, "", encoded.pieces, encoded.buffers)
        self.ref = ray.put(sendable(frames))

    @property
    def value(self) -> codec.Encoded:  # type: ignore[override]
        payload, buffers = self._parts()
        return codec.Encoded((payload,), buffers)

    def get(self) -> Any:
        """Return the value; a copy of its own each time."""
        return codec.decode(*self._parts())

    def __reduce__(self) -> tuple[Any, ...]:
        in_transit.note(self._travelling)
        if (noting := references.local.notes) is not None:
            return references.entry(noting.number_of(self))
        return codec.decode, codec.parts(*self._parts())

    def _parts(self) -> tuple[Any, Any]:
        message = wire.decode(received(ray.get(self.ref)), "actor")
        return message.payload, message.buffers
