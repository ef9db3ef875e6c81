"""A value that is pickled once and passed many times."""

from typing import Any

from remotely.client.crossing import Crossing
from remotely.machine.shield import shield
from remotely.protocol.control import StoreAddress
from remotely.values import arena, codec, in_transit, notes, references
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded
from remotely.values.parcel import SEND_FROM_BYTES
from remotely.values.references import InStore


class Ref:
    """Pass it as an argument: it arrives as the value was when you put it.

    A large value stays in the arena as long as the ref lives, or a message with it still has to be
    sent.  Passing it to an actor on this machine copies nothing.  To another machine it crosses
    once, and stays in the store there as long as the ref lives.

    crossings   to those machines; each of another set of them
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
        self._may_cross = encoded.nbytes >= SEND_FROM_BYTES
        self.crossings: list[Crossing] = []

    def get(self) -> Any:
        """Return the value; a copy of its own each time."""
        return codec.decode(self._payload, [bytearray(buffer) for buffer in self._buffers])

    @property
    def encoded(self) -> Encoded:
        return Encoded([bytes(self._payload)], self._buffers)

    def entry_at(self, store: StoreAddress | None) -> "Ref | InStore":
        """Return what arrives as the value at an actor whose machine has this store."""
        for crossing in self.crossings:
            if (parcel := crossing.parcel_at(store)) is not None:
                return InStore(parcel)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        in_transit.note(self._travelling)
        noting = notes.local.notes if self._may_cross else None
        if noting is not None and noting.remotes[0].engine.is_any_elsewhere(noting.remotes):
            return references.entry(noting.number_of(self))
        return codec.decode_parts, codec.parts(self._payload, self._buffers)
