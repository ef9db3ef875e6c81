"""Large values that a channel exchanges with its actor through shared memory.

The client offers its arena when it first has a large value to send or receives one.  That value
still travels by socket; see values/payload.py for the exchange that follows.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from remotely.futures.future import CallFuture
from remotely.machine.shield import shield
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind
from remotely.values import arena, codec
from remotely.values.arena import Loan
from remotely.values.owned import NOTHING
from remotely.values.payload import MemoryPeer, Parcel, open_loan, read_loan


class Send(Protocol):
    """`Channel.send`."""

    def __call__(
        self,
        kind: Kind,
        name: str,
        value: codec.Encoded,
        future: CallFuture[Any],
        background: bool,
    ) -> object: ...


class SharedMemory:
    """The memory that this process shares with one actor.

    peer        the actor as a partner in memory, once it has answered
    may_offer   the actor is on this machine and has not been asked yet
    """

    def __init__(self, same_host: bool, send: Send, release: Callable[[Parcel], object]) -> None:
        self.peer: MemoryPeer | None = None
        self.may_offer = same_host and arena.SUPPORTED
        self._send = send
        self._release = release  # a value that is in a store

    def offer(self) -> None:
        """Ask the actor, once, to exchange large values through memory from now on."""
        if not self.may_offer or (ours := arena.ours()) is None:
            return
        self.may_offer = False
        future: CallFuture[Any] = CallFuture("the actor")
        future.add_done_callback(self._open_theirs)
        address = codec.Encoded((control.encode(ours.address),), ())
        self._send(Kind.OPEN, "", address, future, background=True)

    def open(self, message: wire.Message) -> wire.Message | Exception:
        """Return a message with the buffers that were lent for it, or the error of its caller.

        Do so when the message is taken in: it may be handed over after the channel has ended.  One
        whose value is in a store is returned as it is.
        """
        try:
            loan = read_loan(message.loan)
            if isinstance(loan, Parcel):
                return message
            payload, buffers = open_loan(message, loan, self.peer)
        except Exception as error:
            return error
        return message._replace(payload=payload, buffers=buffers, loan=b"")

    def decline(self, message: wire.Message) -> None:
        """Release the value of a message that nobody waits for."""
        if not message.loan:
            return
        loan = read_loan(message.loan)
        if isinstance(loan, Parcel):
            self._release(loan)
        elif self.peer is not None:
            self.peer.lender.decline(loan)

    def _open_theirs(self, future: Any) -> None:
        if future.exception() is not None or (theirs := future.result()) is None:
            return  # the actor died, or cannot share memory: go on by socket
        with suppress(Exception):  # this process cannot open it: go on by socket
            peer = MemoryPeer(theirs)
            peer.reads = True
            self.peer = peer
            opened: CallFuture[Any] = CallFuture("the actor")
            self._send(Kind.OPENED, "", NOTHING, opened, background=True)


def take_back(loan: Loan) -> None:
    """Free what was lent for a message that did not leave."""
    if (ours := arena.ours()) is not None:
        with shield:
            ours.take_back(loan)
