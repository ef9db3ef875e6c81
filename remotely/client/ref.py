"""Refs: values that are pickled once and passed many times."""

from typing import Any

from remotely.futures.reference import Put
from remotely.protocol.control import StoreAddress
from remotely.values import codec, in_transit, references
from remotely.values.borrowing import new_memory
from remotely.values.owned import Owned
from remotely.values.payload import SEND_FROM_BYTES, Parcel, Transfer


class Ref(Put):
    """Pass it as an argument: it arrives as the value was at `put`.

    A large value stays in the arena as long as the ref lives or a message with it is unsent.
    Passing it to an actor on this machine copies nothing.  It is transferred to another machine
    once, and stays in the store there as long as the ref lives.

    transfers   those to other machines, each to a different set of them
    """

    def __init__(self, value: Owned) -> None:
        self.value = value
        self.transfers: list[Transfer] = []

    def get(self) -> Any:
        """Return a new copy of the value."""
        copies = []
        for buffer in self.value.buffers:
            copies.append(memory := new_memory(buffer.nbytes))
            memory[:] = buffer
        return codec.decode(self.value.payload, copies)

    def entry_at(self, store: StoreAddress | None) -> "Ref | Parcel":
        """Return what stands for the value in a message to an actor on the store's machine."""
        for transfer in self.transfers:
            if (parcel := transfer.parcel_at(store)) is not None:
                return parcel
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        in_transit.note(self.value.travelling)
        table = codec.reference_table.get() if self.value.nbytes >= SEND_FROM_BYTES else None
        if table is not None:
            remotes = table.remotes
            if not remotes or remotes[0].engine.is_any_elsewhere(remotes):
                return references.entry(table.number_of(self))
        return references.arrive, ((), *codec.parts(self.value.payload, self.value.buffers))
