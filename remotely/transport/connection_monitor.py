"""What libzmq reports about a connection: that it is established, and that it has ended."""

from collections.abc import Callable

import zmq

from remotely.transport import sockets
from remotely.transport.loop import Loop
from remotely.transport.sockets import readable

BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class ConnectionMonitor:
    """Reads the monitor of one socket on the loop's thread, and tells there what it hears.

    Make it before the socket is connected.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        loop: Loop,
        on_broken: Callable[[], None],
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self.connected = False
        self._watched = socket
        self._loop = loop
        self._on_connected = on_connected
        self._on_broken = on_broken
        self._monitor = socket.get_monitor_socket(BROKEN | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        loop.watch(self._monitor.FD, self._hear, edge=True)
        loop.call(self._hear)

    def close(self) -> None:
        """Stop listening, before the watched socket is closed.  Any thread may call this."""
        self._watched.disable_monitor()
        self._loop.call(self._close)  # the monitor belongs to the loop's thread

    def may_have_connected(self) -> bool:
        """Return whether the actor may have received anything.

        libzmq reports the handshake before it sends the first byte.  So if it has not reported
        that by now, nothing has left.  Only the loop's thread may look; any other cannot rule it
        out.
        """
        if self._loop.is_own_thread():
            self._read()
            return self.connected
        return True

    def _hear(self) -> None:
        """On the loop's thread."""
        self._read()

    def _read(self) -> None:
        while not self._monitor.closed and readable(self._monitor):
            event = sockets.event_of(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
                self._on_connected()
            elif event & BROKEN:
                self._on_broken()

    def _close(self) -> None:
        if not self._monitor.closed:
            self._loop.unwatch(self._monitor.FD)
            self._monitor.close(linger=0)
