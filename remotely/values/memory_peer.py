"""The exchange of large values through shared memory with another process of this machine.

How two processes become peers, at the first large value between them, which still goes by socket:

    client -> actor    OPEN: where the client's arena is.  The actor opens it, and replies where its
                       own is
    client -> actor    OPENED: the client has opened that one too

After the reply the client lends to the actor, and after OPENED the actor lends to the client.  If
one of them cannot open the other's arena, everything still goes by socket.
"""

import os
import select
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec

from remotely.errors import WireError
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import wire
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.values import arena
from remotely.values.arena import SHARE_FROM_BYTES, ArenaAddress, Loan, StoredValue
from remotely.values.borrowing import Lender
from remotely.values.codec import Encoded
from remotely.values.parcel import Parcel


class MemoryPeer:
    """The other process.  Raises OSError if it, or its arena, cannot be opened."""

    def __init__(self, theirs: ArenaAddress) -> None:
        self.lender = Lender(theirs)
        self.reads = False  # it has our arena open
        self._process = OwnedFd(os.pidfd_open(theirs.pid))

    def alive(self) -> bool:
        poll = select.poll()  # one a call: two threads may ask at once
        poll.register(self._process.fd, select.POLLIN)
        return not poll.poll(0)


class Crosses(Protocol):
    """Brings a value to other machines; `done` when it is there."""

    done: Future[None]

    def covers(self, store: StoreAddress) -> bool:
        """Tell whether the value is there, or on its way."""

    def parcel_at(self, store: StoreAddress | None) -> Parcel | None:
        """Return what to send to an actor there in its place; None if it is to be sent whole."""


class OutgoingValue:
    """A value that is being sent, to one peer or several; copied into the arena at most once.

    `crossings` bring it to other machines, each to some.
    """

    __slots__ = ("_placed", "_several", "_tried", "crossings", "encoded", "is_large")

    def __init__(
        self, encoded: Encoded, several: bool = False, crossings: Sequence[Crosses] = ()
    ) -> None:
        self.encoded = encoded
        self.crossings = crossings
        self.is_large = encoded.nbytes >= SHARE_FROM_BYTES
        self._several = several
        self._placed: StoredValue | None = None
        self._tried = False

    def lend(self, reader: MemoryPeer | None) -> Loan | None:
        """Lend it to one peer; return None if it is better sent by socket."""
        if not self.is_large or reader is None or not reader.reads:
            return None
        if (memory := arena.ours()) is None:
            return None
        if not self._tried:
            self._tried = True
            self._placed = memory.place(self.encoded)
        return self._placed and memory.lend(self._placed, reader, self._several)

    def message(
        self,
        kind: Kind,
        call_id: int,
        name: str,
        loan: Loan | Parcel | None,
        store: StoreAddress | None = None,
    ) -> list[bytes | memoryview]:
        """Return the frames of a message that carries it, lent or whole.

        `store` is that of the reader's machine: the value may be there.
        """
        for crossing in self.crossings:
            loan = loan or crossing.parcel_at(store)
        if loan is None:
            return wire.encode(kind, call_id, name, self.encoded.pieces, self.encoded.buffers)
        is_there = isinstance(loan, Parcel) or loan.has_payload
        return wire.encode(
            kind, call_id, name, () if is_there else self.encoded.pieces, (), _write(loan)
        )

    def close(self) -> None:
        """It has been sent to all: do not lend it any more."""
        if self._placed is not None and (memory := arena.ours()) is not None:
            memory.let_go(self._placed)
        self._placed = None


Unpacked = tuple[bytes | memoryview, Sequence[bytes | memoryview]]


def unpack(
    message: wire.Message, peer: MemoryPeer | None, borrow: Callable[[Parcel], Unpacked]
) -> Unpacked:
    """Return the payload and the buffers of a message, wherever they are."""
    if not message.loan:
        return message.payload, message.buffers
    loan = read_loan(message.loan)
    if isinstance(loan, Parcel):
        return borrow(loan)
    if peer is None or peer.lender.address.lender != loan.lender:
        raise WireError("a loan from an arena that is not open here")
    payload, buffers = peer.lender.open(loan)
    return (message.payload if payload is None else payload), buffers


def decline(message: wire.Message, peer: MemoryPeer | None) -> None:
    """Release the value of a message that nobody here wants.

    What is in a store is released by the client that has brought it there.
    """
    loan = read_loan(message.loan) if message.loan else None
    if isinstance(loan, Loan) and peer is not None:
        peer.lender.decline(loan)


def read_loan(data: bytes) -> Loan | Parcel:
    """Return what a message has in place of its value.  Raises WireError."""
    try:
        found: Loan | Parcel = _read(data)
        return found
    except msgspec.DecodeError as error:
        raise WireError(f"not a loan: {error}") from None


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Loan | Parcel).decode
