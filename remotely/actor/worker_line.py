"""What an actor tells its worker, over the socket that it was born with.

A worker that is stopped reads nothing, and the socket fills.  Whoever writes then waits, but for
the door thread: it looks whether the lease has ended, and the actor with it (fence.py).
"""

import contextlib
import socket
import threading
from collections import deque

from remotely.protocol import control

MAX_UNTOLD = 1_000  # a worker that is back is told of the first so many


class WorkerLine:
    def __init__(self, worker: socket.socket) -> None:
        self._worker = worker
        self._untold: deque[bytes] = deque()
        self._never_waits = 0  # a thread

    def never_wait(self) -> None:
        """What this thread tells from now on waits in its stead, for `go_on`."""
        self._never_waits = threading.get_ident()

    def tell(self, message: control.FromActor) -> None:
        self.send(control.encode(message))

    def send(self, data: bytes) -> None:
        """Send a message that is written already.  If the worker has gone, so have its words."""
        if threading.get_ident() == self._never_waits:
            if len(self._untold) < MAX_UNTOLD:
                self._untold.append(data)
            self.go_on()
        else:
            with contextlib.suppress(OSError):
                self._worker.send(data)

    def go_on(self) -> bool:
        """Send what had no room before, on the thread that never waits; true if that is all."""
        while self._untold:
            try:
                self._worker.send(self._untold[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                pass
            self._untold.popleft()
        return True
