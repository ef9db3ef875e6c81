"""Transfers of large values: TLS 1.3 connections to a process whose certificate is known.

    request   op, name of the value, start and length of a stripe of it, length of the onward route;
              then that route
    PUSH      the stripe follows; the reply is DONE once all of it has arrived
    PULL      the reply is HERE and the stripe, or GONE and the reason
    FOLLOW    the name is that of a published value, and what follows is no route; it and the reply
              are in values/following.py

The name of a value alone authorizes a transfer: it is a secret of 32 bytes, which was sent over
CURVE to the processes that may push or pull the value.  Each side gives up if nothing moves for
STALL_S.  A stranger can send the fixed part of one request, within STALL_S, and is then
disconnected.

One core encrypts at most about a gigabyte per second.  So a value crosses in a few stripes, each
with a connection and a thread of its own.  The same bytes may arrive twice, which is harmless.
"""

import contextlib
import errno
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from remotely.machine import this_machine, threads
from remotely.protocol.address import parse_address
from remotely.protocol.control import BulkAddress
from remotely.protocol.lease import ACCEPT_AGAIN_S, CONNECT_S, STALL_S
from remotely.transport import certificate
from remotely.transport.certificate import Certificate
from remotely.transport.listening import nearest

log = logging.getLogger("remotely.bulk")

SERVED_IDLE_S = 60.0  # after which a store closes a connection; its client does so earlier
CHUNK_BYTES = 1 << 18  # that a machine passes on at a time
PUSH, PULL, FOLLOW = 1, 2, 3
MOST_STRANGERS = 256  # connections that have not named a value yet; beyond, the oldest is cut
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)
STRIPE_FROM_BYTES = 8 << 20  # a smaller value crosses in one stripe
DONE, HERE, GONE = b"\1", b"\2", b"\3"
MAX_ONWARD_BYTES = 1 << 20
REQUEST = struct.Struct(">B32sQQI")
LANES = 2 if this_machine.cores() < 8 else 4
_LENGTH = struct.Struct(">I")


class BulkRequest(NamedTuple):
    op: int
    value: bytes
    start: int = 0
    nbytes: int = 0
    onward: bytes = b""


class ValueGone(Exception):
    """The store does not have the value; the message says why."""


class Connection:
    """One TLS connection, for one transfer at a time and one thread at a time."""

    def __init__(self, raw: ssl.SSLSocket) -> None:
        self._socket = raw

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, *parts: bytes | memoryview) -> None:
        """Send all of it.  Raises OSError."""
        for part in parts:  # in pieces, because the timeout is for a whole `sendall`
            view = memoryview(part).cast("B")
            for at in range(0, view.nbytes, CHUNK_BYTES):
                self._socket.sendall(view[at : at + CHUNK_BYTES])

    def receive_into(self, memory: memoryview) -> None:
        """Fill the memory.  Raises OSError."""
        at, size = 0, memory.nbytes
        while at < size:
            at += self.receive_some(memory[at:])

    def receive_some(self, memory: memoryview) -> int:
        """Fill the beginning of the memory with what has come; return how much.  Raises OSError."""
        if not (count := self._socket.recv_into(memory)):
            raise ConnectionResetError("the connection ended")
        return count

    def send_as_it_arrives(self, memory: memoryview, progress: "ByteProgress") -> bool:
        """Send memory that is being filled; return False if that failed.  Raises OSError."""
        at = 0
        while at < memory.nbytes:
            if (end := progress.wait_beyond(at)) == at:
                return False
            self.send(memory[at:end])
            at = end
        return True

    def stalls_after(self, seconds: float) -> None:
        """Set for how long nothing may move, in place of STALL_S."""
        self._socket.settimeout(seconds)

    def receive(self, nbytes: int) -> bytes:
        memory = bytearray(nbytes)
        self.receive_into(memoryview(memory))
        return bytes(memory)

    def wait_for_request(
        self, within_s: float = SERVED_IDLE_S, knows: Callable[[bytes], bool] = lambda name: True
    ) -> BulkRequest | None:
        """Return the next request; None at the end of the connection.

        All of it but the onward route must arrive within `within_s`.  The route is read only if
        `knows` confirms that a value of that name is expected, or published.  Raises OSError.
        """
        head = self._receive_within(within_s, REQUEST.size)
        if not head:
            return None
        op, value, start, nbytes, onward = REQUEST.unpack(head)
        if onward > MAX_ONWARD_BYTES:
            raise ConnectionAbortedError("not a request")
        if onward and not knows(value):
            if op != FOLLOW:
                raise ConnectionAbortedError("an unexpected value")
            onward = 0  # what it follows may have ended, which it is told
        return BulkRequest(op, value, start, nbytes, self.receive(onward) if onward else b"")

    def _receive_within(self, seconds: float, nbytes: int) -> bytes:
        """Return `nbytes` bytes, or none at the end of the connection; all within `seconds`."""
        deadline = time.monotonic() + seconds
        data = b""
        try:
            while len(data) < nbytes:
                if (left_s := deadline - time.monotonic()) <= 0:
                    raise TimeoutError("a request came too slowly")
                self._socket.settimeout(left_s)
                if not (piece := self._socket.recv(nbytes - len(data))):
                    return b""
                data += piece
        finally:
            self._socket.settimeout(STALL_S)
        return data

    def request(self, op: int, value: bytes, start: int, nbytes: int, onward: bytes = b"") -> None:
        self.send(REQUEST.pack(op, value, start, nbytes, len(onward)) + onward)

    def push(
        self, value: bytes, start: int, nbytes: int, parts: Iterable[memoryview], onward: bytes
    ) -> None:
        """Send a stripe of a value to a store that expects it.  Raises OSError."""
        self.request(PUSH, value, start, nbytes, onward)
        self.send(*parts)
        self.expect_done()

    def expect_done(self) -> None:
        if self.receive(1) != DONE:
            raise ConnectionAbortedError("not a reply")

    def pull(self, value: bytes, start: int, memory: memoryview) -> None:
        """Fetch a stripe of a value from the store that has it.  Raises OSError or ValueGone."""
        self.request(PULL, value, start, memory.nbytes)
        if self.receive(1) != HERE:
            (length,) = _LENGTH.unpack(self.receive(_LENGTH.size))
            raise ValueGone(self.receive(min(length, CHUNK_BYTES)).decode(errors="replace"))
        self.receive_into(memory)

    def say_gone(self, why: str) -> None:
        data = why.encode()
        self.send(GONE + _LENGTH.pack(len(data)) + data)

    def shake_hands(self) -> None:
        """Run the server's side of the TLS handshake.  Raises OSError."""
        self._socket.do_handshake()

    def cut(self) -> None:
        """Shut the connection down: operations of other threads fail, or see its end."""
        with contextlib.suppress(OSError):  # the peer is gone
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's is not thread-safe

    def close(self) -> None:
        self._socket.close()


class ByteProgress:
    """How much of some memory has arrived, for the threads that pass it on meanwhile."""

    def __init__(self) -> None:
        self.received = 0
        self.is_over = False
        self._changed = threading.Condition()

    def move(self, received: int) -> None:
        with self._changed:
            self.received = received
            self._changed.notify_all()

    def end(self) -> None:
        """Signal that no more will arrive."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def wait_beyond(self, at: int) -> int:
        """Wait until more than `at` bytes have arrived; return how many, or `at` if none will."""
        with self._changed:
            self._changed.wait_for(lambda: self.received > at or self.is_over)
            return self.received


def stripes(nbytes: int) -> list[tuple[int, int]]:
    """Return the start and length of each stripe of a value."""
    lanes = LANES if nbytes >= STRIPE_FROM_BYTES else 1
    size = max(1, -(-nbytes // lanes))
    return [(start, min(size, nbytes - start)) for start in range(0, nbytes, size)]


def in_stripes(nbytes: int, move: Callable[[int, int], None]) -> None:
    """Move all stripes of a value at the same time; raise the error of the first that failed."""
    errors: list[Exception] = []

    def run(start: int, length: int) -> None:
        try:
            move(start, length)
        except Exception as error:
            # Without its frames, which refer to the memory of the value.
            errors.append(error.with_traceback(None))

    first, *others = stripes(nbytes)
    started = [threads.start("bulk", run, *stripe) for stripe in others]
    run(*first)
    for thread in started:
        thread.join()
    if errors:
        raise errors.pop(0)


def fetch(address: BulkAddress, value: bytes, memory: memoryview) -> None:
    """Fetch a whole value on new connections.  Raises OSError or ValueGone."""

    def pull(start: int, nbytes: int) -> None:
        with connect(address) as connection:
            connection.pull(value, start, memory[start : start + nbytes])

    in_stripes(memory.nbytes, pull)


def connect(address: BulkAddress, within_s: float = CONNECT_S) -> Connection:
    """Connect to a store.  Raises OSError, also if its certificate is another's.

    A TimeoutError means that the store is there, and silent.
    """
    try:
        raw = socket.create_connection(parse_address(nearest(address.tcp)), within_s)
    except TimeoutError:
        raise ConnectionError(f"nothing answers there within {within_s:g} s") from None
    with raw:  # its descriptor is that of `wrapped`, once there is one
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wrapped = _context().wrap_socket(raw)
    if not certificate.is_of(wrapped, address.fingerprint):
        wrapped.close()
        raise ConnectionRefusedError("its certificate is not the one that the cluster announced")
    wrapped.settimeout(STALL_S)
    return Connection(wrapped)


def accept(raw: socket.socket, context: ssl.SSLContext) -> Connection:
    """Return the server's side of a connection, before the handshake.  Raises OSError."""
    raw.settimeout(STALL_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False))


# --- the server's side ----------------------------------------------------------------------------


class ByteServer:
    """Accepts connections, and answers the requests of each on a thread of its own.

    `knows` tells whether a value of that name is expected or here; `answer` serves one request.  A
    connection that has not named such a value is a stranger's: it is cut after one request, or when
    there are too many of them.
    """

    def __init__(
        self,
        listener: socket.socket,
        own: Certificate,
        knows: Callable[[bytes], bool],
        answer: Callable[[Connection, BulkRequest], None],
    ) -> None:
        self._listener = listener
        self._certificate = own
        self._knows = knows
        self._answer = answer
        self._strangers: dict[Connection, None] = {}  # oldest first
        self._known: set[Connection] = set()
        self._lock = threading.Lock()  # so that a connection is not closed while it is cut

    def start(self) -> None:
        threads.start("bulk", self._accept)

    def close(self) -> None:
        """Accept no more connections, and cut those that there are."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            for connection in (*self._strangers, *self._known):
                connection.cut()

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in TRANSIENT:  # the listener is closed
                    return
                time.sleep(ACCEPT_AGAIN_S)
                continue
            self._admit(raw)

    def _admit(self, raw: socket.socket) -> None:
        try:
            connection = accept(raw, self._certificate.context)
        except OSError:  # it has gone already
            raw.close()
            return
        with self._lock:
            self._strangers[connection] = None
            if len(self._strangers) > MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cut()
        try:
            threads.start("bulk", self._serve, connection)
        except RuntimeError:  # no further thread can be started
            self._end(connection)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.shake_hands()
            is_known = False
            while request := connection.wait_for_request(
                SERVED_IDLE_S if is_known else STALL_S, self._knows
            ):
                if self._knows(request.value):  # strangers do not know its name
                    is_known = True
                    self._acquaint(connection)
                self._answer(connection, request)
                if not is_known:
                    break
        except (OSError, ssl.SSLError):  # a stranger, or a peer that is gone
            pass
        except Exception:
            log.exception("a connection was cut")
        finally:
            self._end(connection)

    def _acquaint(self, connection: Connection) -> None:
        with self._lock:
            self._strangers.pop(connection, None)
            self._known.add(connection)

    def _end(self, connection: Connection) -> None:
        with self._lock:
            self._strangers.pop(connection, None)
            self._known.discard(connection)
        connection.close()


_client: ssl.SSLContext | None = None


def _context() -> ssl.SSLContext:
    global _client
    if _client is None:
        _client = certificate.client_context()
    return _client
