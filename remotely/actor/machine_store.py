"""The store of this machine, as an actor uses it: to borrow arguments and to offer results.

The worker gives the actor a socket to the store when the first large value crosses between
machines.  Any thread may use this; a thread that finds every connection in use opens another.

The life of a result:

    1  offered    it is laid out in the arena of this actor and lent to the store, whose mapping
                  of the memory outlives this actor
    2  kept       it is on a shelf here too (values/shelf.py), for a caller that cannot reach the
                  store or finds that it has ended, and asks this actor for the value itself
    3  dropped    its caller has fetched or released it, so the store has returned the loan
                  (`_sweep`); or its caller, which holds it, has ended

If a caller leaves a result for a while, the actor checks whether the caller still exists.
"""

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from remotely.errors import NotShared, WorkerLost
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.address import describe
from remotely.protocol.lease import CONNECT_S
from remotely.transport import bulk
from remotely.transport.bulk import ValueGone
from remotely.transport.connection_pool import ConnectionPool
from remotely.transport.line import Line
from remotely.transport.listening import nearest
from remotely.values import arena, borrowing, payload, versions
from remotely.values.arena import Arena, ArenaAddress, Lendable, Loan
from remotely.values.codec import Encoded
from remotely.values.following import followings
from remotely.values.in_transit import InTransit
from remotely.values.payload import OpenedProcess, Parcel, Unpacked
from remotely.values.shared_memory import MemoryAddress, SharedMemory
from remotely.values.shelf import Shelf

T = TypeVar("T")

UNFETCHED_S = 2.0  # a caller that leaves a result, for the first time; then at growing intervals
STORE_ANSWER_S = 30.0  # timeout for a store that is stopped
SLOWEST_LINE = 1e6  # bytes a second, of a machine from which the store fetches
STORE_AGAIN_S = 5.0  # until the next try to reach a store; until then results go in messages
_write = msgspec.msgpack.Encoder().encode
_read_loan = msgspec.msgpack.Decoder(Loan).decode
_read_memory = msgspec.msgpack.Decoder(tuple[str, str, int, int, str, int]).decode
_read_arena = msgspec.msgpack.Decoder(ArenaAddress).decode
_FROM_STORE = control.Decoder("store > actor")


class NoStore(Exception):
    """There is no store here, it has ended, or it lacks a value; the message says which."""


class _Connection:
    """A connection to the store, for one request at a time.  Raises LineLost."""

    def __init__(self, end: OwnedFd, address: bytes) -> None:
        self._line = Line(socket.socket(fileno=end.take()), _FROM_STORE)
        self.close = self._line.close
        self.tell = self._line.send
        shared = self.ask(control.Share(arena=address))
        if not isinstance(shared, control.Shared):
            raise NoStore("the store cannot share memory with this actor")
        self.bulk = shared.bulk
        self.arena = _read_arena(shared.arena)

    def ask(
        self, message: control.Share | control.Offer | control.Borrow | control.Follow
    ) -> object:
        slowest_s = 0.0
        if isinstance(message, control.Borrow) and message.bulk is not None:
            slowest_s = message.nbytes / SLOWEST_LINE
        return self._line.ask(message, STORE_ANSWER_S + slowest_s)


@dataclass(slots=True, eq=False)
class _Result:
    """A result that has been lent to the store; `needs` is kept alive with it."""

    parcel: Parcel
    placed: Lendable
    loan: Loan
    store: OpenedProcess
    needs: Sequence[InTransit]
    since: float
    check_at: float

    @property
    def memory(self) -> memoryview:
        return self.placed.memory

    def is_returned(self) -> bool:
        """Tell whether the store has returned the loan.

        A store that has ended has not: callers ask this actor then.
        """
        return not self.placed.is_lent(self.loan) and self.store.alive()


class MachineStore:
    """`ask_worker` requests a connection, which `introduced` receives."""

    def __init__(self, ask_worker: Callable[[], None]) -> None:
        self._ask_worker = ask_worker
        self._new: queue.SimpleQueue[OwnedFd | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._connections: ConnectionPool[None, _Connection] = ConnectionPool(self._connect)
        self._peer: OpenedProcess | None = None  # the store
        self._results: Shelf[_Result] = Shelf()  # each held by the route of its caller
        self._none_until = 0.0

    def introduced(self, end: OwnedFd | None) -> None:
        """Take the worker's answer, a socket; None means that there is no store here."""
        self._new.put(end)

    def _borrow(self, wanted: Parcel) -> Unpacked:
        """Return the pickle and the buffers of a value.  Raises NoStore."""
        asked = control.Borrow(value=wanted.value, nbytes=wanted.nbytes, bulk=wanted.store)
        answer, lender = self._use(lambda its: (its.ask(asked), self._reader(its).lender))
        if not isinstance(answer, control.Lent):
            assert isinstance(answer, control.Gone)
            raise NoStore(answer.why)
        _, (memory,) = lender.open(_read_loan(answer.loan))
        return wanted.cut(memory)

    def fetch_argument(self, wanted: Parcel) -> Unpacked:
        """Return the arguments of a call, or one of them: a ref, or a result of another actor.

        If the store of this machine cannot fetch the value, this process does.  Raises WorkerLost
        if it is lost.
        """
        try:
            return self._borrow(wanted)
        except NoStore as error:
            if wanted.store is None:  # it was only in the store of this machine
                why = f"a large argument was lost before the call ran: {error}"
                raise WorkerLost(why, may_have_run=False) from None
        memory = borrowing.new_memory(wanted.nbytes)
        try:
            bulk.fetch(wanted.store, wanted.value, memory)
            return wanted.cut(memory)
        except ValueGone as error:
            why = str(error)
        except OSError as error:
            where = describe(nearest(wanted.store.tcp))
            why = f"{where} cannot be reached from its machine: {error}"
        text = f"the result of {wanted.of} is lost: {why}; the call that needs it did not run"
        raise WorkerLost(text, may_have_run=False)

    def follow(self, origin: bytes) -> SharedMemory:
        """Return memory that follows a published value of another machine.  Raises NotShared.

        Without a store, this process follows by itself.
        """
        try:
            asked = control.Follow(origin=origin)
            answer = self._use(lambda its: its.ask(asked))
        except NoStore:
            return followings.follow(origin)
        if not isinstance(answer, control.FollowedAt):
            assert isinstance(answer, control.Gone)
            raise NotShared(answer.why)
        return versions.open_memory(MemoryAddress(*_read_memory(answer.memory)))

    def offer(self, encoded: Encoded, route: bytes, of: str) -> Parcel | None:
        """Leave a result in the store for the caller at `route`; return None if that fails.

        `of` is the name of the method, for error messages.
        """
        if (memory := arena.ours()) is None or time.monotonic() < self._none_until:
            return None
        self._sweep()
        try:
            return self._use(partial(self._offer, memory, encoded, route, of))
        except NoStore:
            self._none_until = time.monotonic() + STORE_AGAIN_S
            return None

    def _offer(
        self, memory: Arena, encoded: Encoded, route: bytes, of: str, connection: _Connection
    ) -> Parcel | None:
        made = payload.parcel_of(encoded, connection.bulk, of)
        if (placed := memory.reserve(made.nbytes)) is None:  # 1
            return None
        payload.lay_out(encoded, placed.memory)
        store = self._reader(connection)
        if (loan := placed.lend(store, private=False)) is None:
            return None
        # If this fails, the store may read the offer yet.  The loan keeps the memory until then.
        connection.ask(control.Offer(value=made.value, loan=_write(loan)))
        now = time.monotonic()
        result = _Result(made, placed, loan, store, encoded.travelling, now, now + UNFETCHED_S)
        self._results.add(made.value, result, route)  # 2
        return made

    def whole(self, name: bytes, is_last: bool) -> Unpacked | None:
        """Return a result for a caller that cannot fetch it from the store.

        `is_last`: no one else needs it, so withdraw it and free its memory after the reply.
        """
        if (value := self._results.get(name)) is None:
            return None
        memory = borrowing.borrow_own(value.room.placed)
        if memory is None:
            memory = memoryview(bytes(value.room.memory))
        if is_last:
            self._drop(name)
        return value.room.parcel.cut(memory)

    def waiting(self, now: float) -> list[bytes]:
        """Return the routes of callers that have not fetched a result for a while."""
        self._sweep()
        due = [value for value in self._results.all() if value.room.check_at < now]
        for value in due:
            value.room.check_at = now + (now - value.room.since)
        routes = {route for value in due for route in value.holders}
        return [route for route in routes if isinstance(route, bytes)]

    def withdraw(self, route: bytes) -> None:
        """Drop the results of a caller that is gone, here and in the store."""
        for value in self._results.held_by(route):
            self._drop(value.name)

    def _drop(self, name: bytes) -> None:
        self._results.drop(name)
        with contextlib.suppress(NoStore):
            self._use(lambda its: its.tell(control.Withdraw(value=name)))

    def _sweep(self) -> None:
        """Drop the results that callers have fetched or released."""
        for value in self._results.all():
            if value.room.is_returned():
                self._results.drop(value.name)  # 3

    def _reader(self, connection: _Connection) -> OpenedProcess:
        """Return the store as a reader of this actor's arena.  Raises NoStore."""
        with self._lock:
            if self._peer is None or self._peer.lender.address != connection.arena:
                try:
                    peer = OpenedProcess(connection.arena)
                    peer.watch()
                except OSError as error:
                    raise NoStore(f"its memory cannot be opened: {error}") from None
                self._peer = peer
            return self._peer

    def _use(self, work: Callable[[_Connection], T]) -> T:
        """Do work with a connection of its own.  Raises NoStore."""
        try:
            return self._connections.use(None, work)
        except OSError as error:
            raise NoStore(f"the store of this machine has ended: {error}") from None

    def close(self) -> None:
        """Disconnect from the store."""
        self._connections.close()

    def _connect(self, _: None) -> _Connection:
        if (ours := arena.ours()) is None:
            raise NoStore("this actor shares no memory")
        with self._asking:
            self._ask_worker()
            try:
                made = self._new.get(timeout=CONNECT_S)
            except queue.Empty:
                raise NoStore("the worker has not connected this actor to its store") from None
        if made is None:
            raise NoStore("this machine has no store for large values")
        return _Connection(made, _write(ours.address))
