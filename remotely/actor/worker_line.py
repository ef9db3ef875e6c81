"""What an actor and its worker say to each other, over the socket that the actor was started with.

A worker that is stopped reads nothing, and the socket fills.  A thread that writes then blocks,
except for the background thread, which has to watch the lease (fence.py).
"""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from remotely.protocol import control
from remotely.transport.loop import Loop

MAX_UNTOLD = 1_000  # messages kept for a worker that is stopped; later ones are dropped

Hear = Callable[[object, socket.socket | None], None]  # a message, and the socket that came with it


class Line(Protocol):
    """An actor's connection to what is a worker to it."""

    def watch(self, loop: Loop, hear: Hear, lost: Callable[[], None]) -> None:
        """Have the thread of `loop` hear each message of the worker, and of its end."""

    def tell(self, message: control.FromActor) -> None:
        """Send a message, on any thread.  If the worker is gone, drop it."""

    def go_on(self) -> bool:
        """Send what had no room before, on the thread of the loop; return if all is sent."""


class WorkerLine:
    """The line of an actor in a process of its own."""

    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._decoder = control.Decoder(control.ToActor)
        self._untold: deque[bytes] = deque()
        self._never_waits = 0  # a thread

    def watch(self, loop: Loop, hear: Hear, lost: Callable[[], None]) -> None:
        loop.call(self.never_wait)
        loop.watch(self._worker.fileno(), lambda: self._receive(hear, lost))

    def never_wait(self) -> None:
        """From now on, messages of this thread that find no room wait for `go_on`."""
        self._never_waits = threading.get_ident()

    def _receive(self, hear: Hear, lost: Callable[[], None]) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(
                self._worker, control.MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            data, fds = b"", []
        if not data:  # the worker is gone, and nothing may outlive it
            lost()
        hear(self._decoder.decode(data), socket.socket(fileno=fds[0]) if fds else None)

    def tell(self, message: control.FromActor) -> None:
        self.send(control.encode(message))

    def send(self, data: bytes) -> None:
        """Send an encoded message.  If the worker is gone, drop it."""
        if threading.get_ident() == self._never_waits:
            if len(self._untold) < MAX_UNTOLD:
                self._untold.append(data)
            self.go_on()
        else:
            with contextlib.suppress(OSError):
                self._worker.send(data)

    def hand_over(self, message: control.FromActor, fd: int) -> None:
        """Send a message and a descriptor with it, on any thread but the one that never waits."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._worker, [control.encode(message)], [fd])

    def go_on(self) -> bool:
        while self._untold:
            try:
                self._worker.send(self._untold[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                pass
            self._untold.popleft()
        return True
