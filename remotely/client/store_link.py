"""A client's connections to the store of one machine: words over CURVE, and bytes over TLS.

The link opens when the first large value is for that machine, or comes from there.  What the client
has announced there is its own for as long as the link holds, and so are the results that it has
claimed.  A link never reconnects: a new one knows of no values.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future

import msgspec
import zmq

from remotely.machine.shield import RLock
from remotely.protocol import control
from remotely.protocol.control import BulkAddress, StoreAddress
from remotely.transport import bulk, sockets
from remotely.transport.bulk import Connection
from remotely.transport.connection_monitor import ConnectionMonitor
from remotely.transport.keys import KeyPair
from remotely.transport.listening import nearest
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect

IDLE_S = 20.0  # after which a TLS connection is closed; earlier than its store does
Events = Callable[[StoreAddress, msgspec.Struct | None], None]  # None: the link broke


class BulkPool:
    """TLS connections to stores, to be used by one thread at a time each."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._idle: dict[BulkAddress, list[tuple[float, Connection]]] = {}
        self._is_closed = False

    def use(self, address: BulkAddress, transfer: Callable[[Connection], None]) -> None:
        """Run a transfer on a connection.  Raises OSError, or what the transfer raises.

        A connection that was idle may have been closed by its store: then a new one is tried.
        """
        while (connection := self._take(address)) is not None:
            try:
                transfer(connection)
            except OSError:
                connection.close()
                continue
            except BaseException:
                connection.close()
                raise
            self._put(address, connection)
            return
        connection = bulk.connect(address)
        try:
            transfer(connection)
        except BaseException:
            connection.close()
            raise
        self._put(address, connection)

    def tidy(self) -> None:
        """Close what has been idle for long."""
        self._close(time.monotonic() - IDLE_S)

    def close(self) -> None:
        """Keep none any more: a transfer that goes on closes its own."""
        self._is_closed = True
        self._close(float("inf"))

    def _take(self, address: BulkAddress) -> Connection | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop()[1] if idle else None

    def _put(self, address: BulkAddress, connection: Connection) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.setdefault(address, []).append((time.monotonic(), connection))
                return
        connection.close()

    def _close(self, before: float) -> None:
        with self._lock:
            for address, idle in list(self._idle.items()):
                for since, connection in idle:
                    if since < before:
                        connection.close()
                self._idle[address] = [(s, c) for s, c in idle if s >= before]
                if not self._idle[address]:
                    del self._idle[address]


class StoreLink:
    """One store.  Any thread may use it; `broken` is called on the loop's thread."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: Loop,
        pair: KeyPair,
        address: StoreAddress,
        broken: Callable[["StoreLink"], None],
    ) -> None:
        self.address = address
        self.bulk: Future[BulkAddress] = Future()  # where it takes bytes
        self.is_broken = False
        self._loop = loop
        self._broken = broken
        self._listeners: dict[bytes, Events] = {}  # by value
        self._decode = control.Decoder(control.FromStore["client"]).decode
        self._socket = sockets.client(context, pair, address.public_key, Reconnect.NEVER)
        self._monitor = ConnectionMonitor(self._socket, loop, self.close)
        loop.call(self._open)

    def expect(self, value: bytes, nbytes: int, listener: Events) -> None:
        """Announce a value; `listener` hears what becomes of it, on the loop's thread."""
        self._listeners[value] = listener
        self._tell(control.Expect(value=value, nbytes=nbytes))

    def claim(self, value: bytes) -> None:
        """Have a result kept until it is released, though its actor may end."""
        self._tell(control.Claim(value=value))

    def ignore(self, value: bytes) -> None:
        """Listen no more."""
        self._listeners.pop(value, None)

    def release(self, value: bytes) -> None:
        """Let a value go.  Never blocks, and takes no lock."""
        self._tell(control.Release(values=[value]))

    def close(self) -> None:
        """On the loop's thread, or after its end."""
        if self.is_broken:
            return
        self.is_broken = True
        self._monitor.close()
        self._loop.unwatch_socket(self._socket)
        self._socket.close(linger=0)
        if not self.bulk.done():
            self.bulk.set_exception(ConnectionRefusedError("the store does not answer"))
        for listener in list(self._listeners.values()):
            listener(self.address, None)
        self._listeners.clear()
        self._broken(self)

    def _open(self) -> None:
        if not self.is_broken:
            sockets.connect(self._socket, nearest(self.address.tcp))
            self._monitor.start()
            self._loop.watch_socket(self._socket, self._hear)
            self._send(control.Reach())

    def _tell(self, message: msgspec.Struct) -> None:
        self._loop.call(lambda: self._send(message))

    def _send(self, message: msgspec.Struct) -> None:
        if not self.is_broken:
            sockets.send(self._socket, [control.encode(message)])
        elif isinstance(message, control.Expect) and (
            listener := self._listeners.pop(message.value, None)
        ):
            listener(self.address, None)

    def _hear(self, frames: list[zmq.Frame]) -> None:
        match message := self._decode(frames[0].buffer):
            case control.Reached(bulk=address):
                if not self.bulk.done():
                    self.bulk.set_result(address)
            case control.AreYouThere():
                pass
            case _:
                assert isinstance(message, msgspec.Struct)
                if listener := self._listeners.get(message.value):  # type: ignore[attr-defined]
                    listener(self.address, message)
