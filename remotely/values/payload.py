"""Payloads: how a value travels with a message, in its frames or in place of them.

    frames    small values: in the message itself
    Loan      from 16 KiB, within a machine: the value is in the sender's arena (arena.py)
    Parcel    from 512 KiB, between machines: the value is one block of memory in a store, which is
              the reader's own store or one to fetch it from.  A store never looks inside

What a client and an actor of one machine may read is settled when they connect.  It belongs to the
connection:

    client -> actor    READS, the first message: the address of the client's arena.  The actor opens
                       it, and replies with an Invitation: the address of its own, and a loan from
                       there
    in memory          the client opens that arena, and returns the loan: a byte in the table there

With the reply, the client may lend to the actor; with that byte, the actor may lend to the client.
If one of them cannot open the other's arena, values go in frames.  A client on another machine says
in READS whether it fetches large results from the store there.

The name of a parcel is 32 random bytes, sent over CURVE to the processes that may have the value.
"""

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from remotely.errors import RemotelyError, WireError
from remotely.machine.watched_process import WatchedProcess
from remotely.protocol import wire
from remotely.protocol.control import BulkAddress, StoreAddress
from remotely.protocol.numbers import NAME_BYTES
from remotely.protocol.wire import Kind
from remotely.values import arena, codec, layout, references
from remotely.values.arena import SHARE_FROM_BYTES, ArenaAddress, Lendable, Loan
from remotely.values.borrowing import Lender
from remotely.values.codec import Encoded

SEND_FROM_BYTES = 1 << 19  # a smaller value is as fast through the actor's own socket
_PADDING = memoryview(bytes(layout.PAGE))

Unpacked = tuple[bytes | memoryview, Sequence[bytes | memoryview]]


class Parcel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Sent in place of a value that is in a store.  Pickled, it arrives as the value.

    pieces   start and length of the pickle and of each of its buffers
    store    where to fetch it; None if it is in the store of the reader's machine
    of       the actor and method that returned it, for error messages
    """

    value: bytes
    nbytes: int
    pieces: list[tuple[int, int]]
    store: BulkAddress | None = None
    of: str = ""

    def cut(self, memory: memoryview) -> Unpacked:
        """Return the pickle and its buffers."""
        pickled, *buffers = (memory[start : start + nbytes] for start, nbytes in self.pieces)
        return pickled, buffers

    def __reduce__(self) -> tuple[Any, ...]:
        return _fetch, (_write(self),)


class _Local(threading.local):
    """`fetched` are the values, by name, that this thread need not fetch."""

    fetched: Mapping[bytes, Unpacked] = MappingProxyType({})


_local = _Local()

# Fetches a value from a store.  Set in actors only.
fetch_parcel: Callable[[Parcel], Unpacked] | None = None


def _fetch(data: bytes) -> Any:
    """Unpickle a parcel: return its value."""
    parcel = read_loan(data)
    if fetch_parcel is None or not isinstance(parcel, Parcel):
        raise RemotelyError("only an actor can fetch results of other actors")
    if references.note_elsewhere(parcel):
        return None
    return codec.decode(*(_local.fetched.get(parcel.value) or fetch_parcel(parcel)))


class Fetched(NamedTuple):
    """A message whose values are here: its pickle and buffers, and what its entries refer to."""

    unpacked: Unpacked
    values: Mapping[bytes, Unpacked]

    def decode(self) -> Any:
        """Return its value."""
        before, _local.fetched = _local.fetched, self.values
        try:
            return codec.decode(*self.unpacked)
        finally:
            _local.fetched = before


def fetch(unpacked: Unpacked) -> Fetched:
    """Fetch what the entries of a message refer to; runs none of the user's code."""
    assert fetch_parcel is not None
    parcels = references.entries_elsewhere(*unpacked) if references.refers(unpacked[0]) else ()
    return Fetched(unpacked, {parcel.value: fetch_parcel(parcel) for parcel in parcels})


def parcel_of(encoded: Encoded, store: BulkAddress | None = None, of: str = "") -> Parcel:
    """Return a new parcel for a value."""
    pieces, nbytes = pieces_of(encoded)
    return Parcel(secrets.token_bytes(NAME_BYTES), nbytes, pieces, store, of)


def pieces_of(encoded: Encoded) -> tuple[list[tuple[int, int]], int]:
    """Return where `lay_out` puts the pickle and each of its buffers, and the bytes of it all."""
    return layout.laid_out((sum(map(len, encoded.pieces)), *(b.nbytes for b in encoded.buffers)))


def segments(encoded: Encoded) -> Iterator[memoryview]:
    """Yield the parts of a parcel's memory, in order."""
    pieces, total = pieces_of(encoded)
    at = 0
    for part, (start, nbytes) in zip(_parts_of(encoded), pieces, strict=True):
        if start > at:
            yield _PADDING[: start - at]
        for view in part:
            yield memoryview(view)
        at = start + nbytes
    if total > at:
        yield _PADDING[: total - at]


def lay_out(encoded: Encoded, into: memoryview) -> None:
    """Write a value into one block of memory."""
    layout.write(into, pieces_of(encoded)[0], _parts_of(encoded))


def _parts_of(encoded: Encoded) -> list[Sequence[bytes | memoryview]]:
    """Return the pickle, in its pieces, and each of its buffers."""
    return [encoded.pieces, *([buffer] for buffer in encoded.buffers)]


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


class Reads(msgspec.Struct, frozen=True, array_like=True):
    """What a client can read, in READS.

    arena    of a client on the actor's machine, which lends from there
    fetches  whether large results may stay in the store of the actor's machine
    """

    arena: ArenaAddress | None = None
    fetches: bool = False


class Invitation(msgspec.Struct, frozen=True, array_like=True):
    """The reply to a client whose arena was opened; it returns the loan once it has opened ours."""

    arena: ArenaAddress
    loan: Loan


class OpenedProcess:
    """Another process of this machine whose arena is open here.  Raises OSError if it cannot be."""

    def __init__(self, theirs: ArenaAddress) -> None:
        self.lender = Lender(theirs)
        self._pid = theirs.pid
        self._watched: WatchedProcess | None = None

    def watch(self) -> None:
        """Begin to notice its end.  Raises OSError."""
        if self._watched is None:
            self._watched = WatchedProcess(self._pid)

    def alive(self) -> bool:
        """Return false if its end was noticed."""
        return self._watched is None or not self._watched.has_ended()


class MemoryPeer:
    """Such a process at the other end of one connection."""

    def __init__(self, process: OpenedProcess) -> None:
        self.process = process
        self.lender = process.lender
        self.alive = process.alive
        self._invited: tuple[Lendable, Loan] | None = None

    def invite(self) -> Invitation | None:
        """Have the peer open our arena; return None if there is none, or no room in it."""
        if (ours := arena.ours()) is None or (placed := ours.reserve(1)) is None:
            return None
        if (loan := placed.lend(self, private=False)) is None:
            return None
        self._invited = placed, loan
        return Invitation(ours.address, loan)

    def accept(self, invitation: Invitation) -> None:
        """Return the loan of an invitation: the peer may lend from now on."""
        self.lender.decline(invitation.loan)

    def reads(self) -> bool:
        """Return whether it can read what we lend, and its end would be noticed.

        It has accepted our invitation, or it has opened our arena without one.
        """
        if self._invited is not None:
            placed, loan = self._invited
            if placed.is_lent(loan):
                return False
            self._invited = None
        try:
            self.process.watch()
        except OSError:  # no descriptor is left, or it has ended
            return False
        return True


class Completion(Protocol):
    """Something that a call may wait for, such as an `AwaitableFuture`."""

    def done(self) -> bool: ...

    def then(self, function: Callable[[Any], object]) -> None:
        """Call `function` once, when it is done."""


class Transfer(Protocol):
    """Brings a value to other machines; `done` when it has arrived."""

    @property
    def done(self) -> Completion: ...

    def covers(self, store: StoreAddress) -> bool:
        """Return whether the value is in that store, or on its way there."""

    def parcel_at(self, store: StoreAddress | None) -> Parcel | None:
        """Return the parcel to send to an actor there; None to send the value whole."""


class OutgoingValue:
    """A value that is being sent to one or several peers; copied into the arena at most once.

    Each of `transfers` brings it to some of the other machines.
    """

    __slots__ = ("_placed", "_several", "_was_placed", "encoded", "is_large", "nbytes", "transfers")

    def __init__(
        self, encoded: Encoded, several: bool = False, transfers: Sequence[Transfer] = ()
    ) -> None:
        self.encoded = encoded
        self.transfers = transfers
        self.nbytes = encoded.nbytes
        self.is_large = self.nbytes >= SHARE_FROM_BYTES
        self._several = several
        self._was_placed = False  # or there was no room for it
        self._placed: Lendable | None = None

    def lend(self, reader: MemoryPeer | None) -> Loan | None:
        """Lend it to one peer; return None if it is to be sent by socket."""
        if not self.is_large or reader is None or not reader.reads():
            return None
        if not self._was_placed and (memory := arena.ours()) is not None:
            self._placed, self._was_placed = memory.place(self.encoded), True
        return None if self._placed is None else self._placed.lend(reader, self._several)

    def message(
        self,
        kind: Kind,
        call_id: int,
        name: str,
        loan: Loan | Parcel | None,
        store: StoreAddress | None = None,
    ) -> list[bytes | memoryview]:
        """Return the frames of a message that carries it, lent or whole.

        `store` is the store of the reader's machine, which may have the value.
        """
        for transfer in self.transfers:
            loan = loan or transfer.parcel_at(store)
        if loan is None:
            return wire.encode(kind, call_id, name, self.encoded.pieces, self.encoded.buffers)
        is_there = isinstance(loan, Parcel) or loan.has_payload
        return wire.encode(
            kind, call_id, name, () if is_there else self.encoded.pieces, (), _write(loan)
        )

    def take_back(self, loan: Loan) -> None:
        """Undo the loan of a message that was not sent."""
        if (ours := arena.ours()) is not None:
            ours.take_back(loan)

    def close(self) -> None:
        """Free its memory: it has been sent to all, and is not lent again."""
        self._placed = None


def unpack(
    message: wire.Message, peer: MemoryPeer | None, borrow: Callable[[Parcel], Unpacked]
) -> Unpacked:
    """Return the pickle and the buffers of a message, wherever they are."""
    if not message.loan:
        return message.payload, message.buffers
    loan = read_loan(message.loan)
    return borrow(loan) if isinstance(loan, Parcel) else open_loan(message, loan, peer)


def with_loan(message: wire.Message, peer: MemoryPeer | None) -> wire.Message | Exception:
    """Return a message with the lent value in place of its loan, or the error of opening it.

    A message whose value is in a store is returned unchanged.
    """
    try:
        loan = read_loan(message.loan)
        if isinstance(loan, Parcel):
            return message
        payload, buffers = open_loan(message, loan, peer)
    except Exception as error:  # the lender may have sent anything
        return error
    return message._replace(payload=payload, buffers=buffers, loan=b"")


def open_loan(message: wire.Message, loan: Loan, peer: MemoryPeer | None) -> Unpacked:
    """Return the payload and the buffers of a message that `peer` has lent."""
    if peer is None or peer.lender.address.lender != loan.lender:
        raise WireError("a loan from an arena that is not open here")
    payload, buffers = peer.lender.open(loan)
    return (message.payload if payload is None else payload), buffers


def decline(message: wire.Message, peer: MemoryPeer | None) -> None:
    """Release the value of a message that is not wanted here.

    A value in a store is released by the client that brought it there.
    """
    loan = read_loan(message.loan) if message.loan else None
    if isinstance(loan, Loan) and peer is not None:
        peer.lender.decline(loan)


def read_loan(data: bytes) -> Loan | Parcel:
    """Decode what a message has in place of its value.  Raises WireError."""
    try:
        found: Loan | Parcel = _read(data)
        return found
    except msgspec.DecodeError as error:
        raise WireError(f"not a loan: {error}") from None


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Loan | Parcel).decode
