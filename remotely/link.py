"""The line to the master, as a worker and a client hold it.

It survives what the master need not: when the connection breaks or the master is started anew, it
does not know us and asks (`WhoAreYou`), and we introduce ourselves again.
"""

import contextlib
import time
from collections.abc import Callable

import msgspec
import zmq

from remotely import control
from remotely.keys import KeyPair
from remotely.lease import BEAT_EVERY_S
from remotely.loop import Loop
from remotely.sockets import Reconnect, client


class Link:
    """One DEALER to the master; all of it runs on the thread of `loop`."""

    def __init__(
        self,
        loop: Loop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        pair: KeyPair,
        master_public: bytes,
        reader: control.Reader,
        introduce: Callable[[], msgspec.Struct],
        on_message: Callable[[object], None],
    ) -> None:
        self.heard = time.monotonic()
        self._loop = loop
        self._reader = reader
        self._introduce = introduce
        self._on_message = on_message
        self.socket = client(context, pair, master_public, Reconnect.BACKING_OFF)
        self.socket.connect(address)
        loop.watch_socket(self.socket, self._receive)
        self._beat = loop.every(BEAT_EVERY_S, lambda: self.send(control.Beat()))
        self.send(introduce())

    def send(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(zmq.Again):  # cannot be: the queue is unbounded
            self.socket.send(control.write(message), zmq.NOBLOCK)

    def silent_s(self) -> float:
        """Return for how long the master has said nothing; it ticks each second."""
        return time.monotonic() - self.heard

    def close(self, linger_ms: int = 0) -> None:
        self._beat.cancel()
        self._loop.unwatch_socket(self.socket)
        self.socket.close(linger=linger_ms)

    def _receive(self, frames: list[zmq.Frame]) -> None:
        self.heard = time.monotonic()
        message = self._reader.read(frames[0].buffer)
        if isinstance(message, control.WhoAreYou):
            self.send(self._introduce())
        elif not isinstance(message, control.Tick):
            self._on_message(message)
