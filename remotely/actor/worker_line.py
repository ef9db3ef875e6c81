"""What an actor tells its worker, over the socket that it was started with.

A worker that is stopped reads nothing, and the socket fills.  A thread that writes then blocks,
except for the background thread, which has to watch the lease (fence.py).
"""

import contextlib
import socket
import threading
from collections import deque

from remotely.protocol import control

MAX_UNTOLD = 1_000  # messages kept for a worker that is stopped; later ones are dropped


class WorkerLine:
    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._untold: deque[bytes] = deque()
        self._never_waits = 0  # a thread

    def never_wait(self) -> None:
        """From now on, messages of this thread that find no room wait for `go_on`."""
        self._never_waits = threading.get_ident()

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
        """Send what had no room before, on the thread that never waits; return if all is sent."""
        while self._untold:
            try:
                self._worker.send(self._untold[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                pass
            self._untold.popleft()
        return True
