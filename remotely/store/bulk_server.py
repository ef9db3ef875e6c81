"""The side of a store that moves bytes: a thread for each connection, and for each relay.

A value that is to go on to further machines is passed on as it arrives, in pieces, by a thread of
its own.  So a slow or dead machine after this one does not hold up this one.
"""

import contextlib
import errno
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable

import msgspec

from remotely.protocol.control import BulkAddress
from remotely.store.shelf import Shelf, Value
from remotely.testing import faults
from remotely.transport import bulk
from remotely.transport.bulk import CHUNK_BYTES, IDLE_S, STALL_S, Connection, Request
from remotely.transport.certificate import Certificate

log = logging.getLogger("remotely.store")

MAX_CONNECTIONS = 1000
MOST_STRANGERS = 256  # of these, that have yet to name a value: one more, and the oldest is cut
PASSING = (errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
AGAIN_S = 0.1
GONE = "it was released, or its store has ended since"

_read_onward = msgspec.msgpack.Decoder(list[BulkAddress]).decode
_write_onward = msgspec.msgpack.Encoder().encode


class BulkServer:
    """Takes and gives values over TLS.

    `arrived` and `broken` hear of values that were expected, `unrelayed` of a machine to which one
    could not be passed on.  All of them are called on threads of this class.
    """

    def __init__(
        self,
        listener: socket.socket,
        certificate: Certificate,
        shelf: Shelf,
        arrived: Callable[[Value], None],
        broken: Callable[[Value, str], None],
        unrelayed: Callable[[Value, BulkAddress, str], None],
    ) -> None:
        self._listener = listener
        self._certificate = certificate
        self._shelf = shelf
        self._arrived = arrived
        self._broken = broken
        self._unrelayed = unrelayed
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._strangers: dict[Connection, None] = {}  # the first to come first
        self._lock = threading.Lock()  # of these: one that is cut is not closed meanwhile

    def start(self) -> None:
        _start(self._accept)

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in PASSING:  # the listener is closed
                    return
                time.sleep(AGAIN_S)
                continue
            if self._room.acquire(blocking=False):
                self._admit(raw)
            else:
                raw.close()

    def _admit(self, raw: socket.socket) -> None:
        try:
            connection = bulk.accept(raw, self._certificate.context)
        except OSError:  # it has gone already
            raw.close()
            self._room.release()
            return
        with self._lock:
            self._strangers[connection] = None
            if len(self._strangers) > MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cut()
        try:
            _start(self._serve, connection)
        except RuntimeError:  # this machine has no thread for it
            self._end(connection)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.shake_hands()
            is_known = False
            while request := connection.wait_for_request(
                IDLE_S if is_known else STALL_S, self._shelf.__contains__
            ):
                if request.value in self._shelf:  # no stranger knows its name
                    is_known = True
                    self._know(connection)
                self._answer(connection, request)
                if not is_known:
                    break
        except (OSError, ssl.SSLError):  # strangers, and peers that are gone
            pass
        except Exception:
            log.exception("a connection was cut")
        finally:
            self._end(connection)

    def _know(self, connection: Connection) -> None:
        """It is a stranger's no more."""
        with self._lock:
            self._strangers.pop(connection, None)

    def _end(self, connection: Connection) -> None:
        self._know(connection)
        connection.close()
        self._room.release()

    def _answer(self, connection: Connection, request: Request) -> None:
        if request.op == bulk.PUSH:
            self._take_in(connection, request)
        elif request.op == bulk.PULL:
            self._give_out(connection, request)
        elif request.op == bulk.DROP:
            self._shelf.drop(request.value)
            connection.send(bulk.DONE)
        else:
            raise ConnectionAbortedError("not a request")

    def _take_in(self, connection: Connection, request: Request) -> None:
        with self._shelf.using(request.value, is_here=False) as value:
            if value is None:
                raise ConnectionAbortedError("a value that nobody expects")
            stripe = _stripe(value, request)
            progress = Progress()
            if request.onward:
                _start(self._pass_on, request, progress)
            try:
                while progress.received < request.nbytes:
                    if faults.ON:
                        faults.at("store.receive")
                    if value.is_dropped:
                        raise ConnectionAbortedError("a value that nobody expects any more")
                    end = progress.received + CHUNK_BYTES
                    connection.receive_into(stripe[progress.received : end])
                    value.moved_at = time.monotonic()
                    progress.move(min(end, request.nbytes))
            except Exception as error:
                progress.end()
                self._broken(value, str(error) or type(error).__name__)
                raise
            if self._shelf.arrive(value, request.start, request.nbytes):
                self._arrived(value)
        connection.send(bulk.DONE)

    def _pass_on(self, request: Request, progress: "Progress") -> None:
        """Bring a stripe to the next machine while it arrives here."""
        to, *rest = _read_onward(request.onward)
        with self._shelf.using(request.value, is_here=None) as value:
            if value is None:
                return
            stripe = _stripe(value, request)
            try:
                connection = bulk.connect(to)
            except OSError as error:
                self._unrelayed(value, to, str(error) or type(error).__name__)
                return
            with connection, contextlib.suppress(OSError):  # the next one says what it lacks
                header = _write_onward(rest) if rest else b""
                connection.request(bulk.PUSH, request.value, request.start, request.nbytes, header)
                at = 0
                while at < request.nbytes:
                    if (there := progress.wait_beyond(at)) == at:
                        return  # it broke here, and the next machine is to see that too
                    connection.send(stripe[at:there])
                    at = there
                connection.expect_done()

    def _give_out(self, connection: Connection, request: Request) -> None:
        with self._shelf.using(request.value) as value:
            if value is None:
                connection.say_gone(GONE)
            else:
                connection.send(bulk.HERE, _stripe(value, request))


class Progress:
    """How much of a stripe has arrived, for the thread that passes it on."""

    def __init__(self) -> None:
        self.received = 0
        self._is_over = False
        self._changed = threading.Condition()

    def move(self, received: int) -> None:
        with self._changed:
            self.received = received
            self._changed.notify()

    def end(self) -> None:
        """No more will come."""
        with self._changed:
            self._is_over = True
            self._changed.notify()

    def wait_beyond(self, at: int) -> int:
        """Wait until more than `at` bytes are there; return how many, or `at` if none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self.received > at or self._is_over)
            return self.received


def _stripe(value: Value, request: Request) -> memoryview:
    memory = value.room.memory
    if request.start + request.nbytes > memory.nbytes:
        raise ConnectionAbortedError("a stripe beyond the end of its value")
    return memory[request.start : request.start + request.nbytes]


def _start(function: Callable[..., None], *args: object) -> None:
    threading.Thread(target=function, args=args, name="remotely-bulk", daemon=True).start()
