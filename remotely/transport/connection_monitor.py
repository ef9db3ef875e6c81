"""A monitor of one libzmq socket: reports that it has connected, and that its connection broke.

A connection is accepted before it is connected: by the kernel, or by libzmq's own thread, of a
process whose Python may be busy.  That the handshake is done needs the peer's Python, which admits
the key.
"""

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
    """Reads the monitor of one socket and calls back, on the loop's thread.

    accepted    whether the peer has accepted the connection
    connected   whether the handshake is done

    Create it before the socket connects.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        loop: Loop,
        on_broken: Callable[[], None],
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self.accepted = self.connected = False
        self._watched = socket
        self._loop = loop
        self._on_connected = on_connected
        self._on_broken = on_broken
        self._monitor = socket.get_monitor_socket(
            BROKEN | zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
        loop.watch(self._monitor.FD, self._handle_events, edge=True)
        loop.call(self._handle_events)

    def close(self) -> None:
        """Stop monitoring, before the watched socket is closed.  Thread-safe."""
        self._watched.disable_monitor()
        self._loop.call(self._close)  # the monitor belongs to the loop's thread

    def may_have_connected(self) -> bool:
        """Return whether the actor may have received anything.

        libzmq reports the handshake before it sends the first message.  So without that report,
        nothing was sent.  Only the loop's thread may read it; for any other, this returns True.
        """
        if self._loop.is_own_thread():
            self._read()
            return self.connected
        return True

    def _handle_events(self) -> None:
        """On the loop's thread, perhaps later than `may_have_connected` is called."""
        self._read()

    def _read(self) -> None:
        while not self._monitor.closed and readable(self._monitor):
            event = sockets.event_of(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_CONNECTED:
                self.accepted = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
                self._on_connected()
            elif event & BROKEN:
                self._on_broken()

    def _close(self) -> None:
        if not self._monitor.closed:
            self._loop.unwatch(self._monitor.FD)
            self._monitor.close(linger=0)
