"""The byte transfers of a store: what comes in and goes out, relay and fetch.

If a value is also for further machines, a separate thread passes it on in pieces as it arrives.  So
a slow or dead machine after this one does not hold up this one.  A value that several actors need
from another machine is fetched once.  Versions of published values that the store follows are
passed on to other machines that ask for them (values/following.py).
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import msgspec

from remotely.machine import threads
from remotely.protocol import control
from remotely.protocol.address import describe
from remotely.protocol.control import BulkAddress, Gone
from remotely.testing import faults
from remotely.transport import bulk
from remotely.transport.bulk import (
    CHUNK_BYTES,
    BulkRequest,
    ByteProgress,
    ByteServer,
    Connection,
    ValueGone,
)
from remotely.transport.certificate import Certificate
from remotely.transport.listening import nearest
from remotely.values import arena
from remotely.values.arena import Borrower, Loan
from remotely.values.following import followings
from remotely.values.shelf import Room, Shelf, Value

log = logging.getLogger("remotely.store")

KEPT_S = 5.0  # how long a fetched value is kept for later requests of the same group
GONE = "it was released, or its store has ended since"

_read_onward = msgspec.msgpack.Decoder(list[BulkAddress]).decode
_write_onward = msgspec.msgpack.Encoder().encode


class LentRoom(Room, Protocol):
    """Memory of a store, which it lends to actors."""

    def lend(self, borrower: Borrower) -> Loan | None:
        """Lend it to an actor; return None if there is no room for that."""


class BulkServer:
    """Receives and sends values over TLS.

    `tell_owner` tells the owner of a value that it arrived, that the transfer failed, or that it
    could not be passed on to a machine.  It is called on threads of this class.
    """

    def __init__(
        self,
        listener: socket.socket,
        certificate: Certificate,
        shelf: Shelf[LentRoom],
        tell_owner: Callable[[Value[LentRoom], msgspec.Struct], None],
    ) -> None:
        self._server = ByteServer(listener, certificate, self._knows, self._answer)
        self._shelf = shelf
        self._tell_owner = tell_owner

    def start(self) -> None:
        self._server.start()

    def _knows(self, name: bytes) -> bool:
        return name in self._shelf or name in followings

    def _answer(self, connection: Connection, request: BulkRequest) -> None:
        if request.op == bulk.PUSH:
            self._take_in(connection, request)
        elif request.op == bulk.PULL:
            self._give_out(connection, request)
        elif request.op == bulk.FOLLOW and request.value in followings:
            followings.pass_on(connection, request)
        else:
            raise ConnectionAbortedError("not a request")

    def _take_in(self, connection: Connection, request: BulkRequest) -> None:
        value = self._shelf.get(request.value, is_here=False)
        if value is None:
            raise ConnectionAbortedError("the value is not expected here")
        stripe = _stripe(value, request)
        progress = ByteProgress()
        # 1. Another thread passes on the stripe as it arrives, and never holds up this one.
        if request.onward:
            threads.start("bulk", self._pass_on, request, progress)
        # 2. The stripe arrives, chunk by chunk.  If the transfer fails, the thread that passes
        #    it on ends too, and the next machine sees the same failure.  The owner is told, and
        #    may send the value again.
        try:
            while progress.received < request.nbytes:
                if faults.ON:
                    faults.at("store.receive")
                if value.is_dropped:
                    raise ConnectionAbortedError("the value is not expected here any more")
                end = progress.received + CHUNK_BYTES
                connection.receive_into(stripe[progress.received : end])
                value.moved_at = time.monotonic()
                progress.move(min(end, request.nbytes))
        except Exception as error:
            progress.end()
            why = str(error) or type(error).__name__
            self._tell_owner(value, control.Broken(value=value.name, why=why))
            raise
        # 3. With its last stripe, the value can be lent.
        if self._shelf.arrive(value, request.start, request.nbytes):
            self._tell_owner(value, control.Stored(value=value.name))
        connection.send(bulk.DONE)

    def _pass_on(self, request: BulkRequest, progress: ByteProgress) -> None:
        """Bring a stripe to the next machine while it arrives here."""
        to, *rest = _read_onward(request.onward)
        value = self._shelf.get(request.value, is_here=None)
        if value is None:
            return
        stripe = _stripe(value, request)
        try:
            connection = bulk.connect(to)
        except OSError as error:
            why = str(error) or type(error).__name__
            self._tell_owner(value, control.Unrelayed(value=value.name, bulk=to, why=why))
            return
        with connection, contextlib.suppress(OSError):  # the next store reports what it lacks
            header = _write_onward(rest) if rest else b""
            connection.request(bulk.PUSH, request.value, request.start, request.nbytes, header)
            if connection.send_as_it_arrives(stripe, progress):
                connection.expect_done()
            # Else the transfer failed here: close, so that the next machine sees it.

    def _give_out(self, connection: Connection, request: BulkRequest) -> None:
        value = self._shelf.get(request.value)
        if value is None:
            connection.say_gone(GONE)
        else:
            connection.send(bulk.HERE, _stripe(value, request))


class Fetching:
    """Fetches of values from other stores: one at a time for each value, however many actors ask.

    Any thread may use it.  `own` is the address of this store.
    """

    def __init__(self, shelf: Shelf[LentRoom], own: BulkAddress) -> None:
        self._shelf = shelf
        self.own = own
        self._lock = threading.Lock()
        self._running: dict[bytes, Future[Gone | None]] = {}  # by the name of the value

    def fetch(self, name: bytes, nbytes: int, address: BulkAddress) -> Gone | None:
        """Fetch a value unless it is here; return why that fails, or None."""
        with self._lock:
            if (value := self._shelf.get(name)) is not None:
                value.moved_at = time.monotonic()
                return None
            running = self._running.get(name)
            if is_first := running is None:
                running = self._running[name] = Future()
        if is_first:
            why: Gone | None = Gone(why="it cannot be fetched")
            try:
                why = self._fetch(name, nbytes, address)
            finally:
                with self._lock:
                    del self._running[name]
                running.set_result(why)
        return running.result()

    def _fetch(self, name: bytes, nbytes: int, address: BulkAddress) -> Gone | None:
        if address == self.own:
            return Gone(why=GONE)
        if (room := reserve(nbytes)) is None:
            return Gone(why="this machine has no memory left for large values")
        try:
            bulk.fetch(address, name, room.memory)
        except ValueGone as gone:
            return Gone(why=str(gone))
        except OSError as error:
            why = f"{describe(nearest(address.tcp))} cannot be reached from here: {error}"
            return Gone(why=why)
        self._shelf.add(name, room, None, grace_s=KEPT_S, now=time.monotonic())
        return None


def reserve(nbytes: int) -> LentRoom | None:
    """Return room in the arena of this process; None if there is none."""
    ours = arena.ours()
    return ours.reserve(nbytes) if ours else None


def _stripe(value: Value[LentRoom], request: BulkRequest) -> memoryview:
    memory = value.room.memory
    if request.start + request.nbytes > memory.nbytes:
        raise ConnectionAbortedError("a stripe beyond the end of its value")
    return memory[request.start : request.start + request.nbytes]
