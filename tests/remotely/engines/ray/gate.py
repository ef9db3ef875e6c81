"""An actor whose calls wait until a test opens it."""

import threading

import remotely


@remotely.remote_class(cpus=0, concurrency=8)
class Gate:
    def __init__(self) -> None:
        self.opened = threading.Event()
        self.waiting = 0

    def wait(self) -> int:
        self.waiting += 1
        self.opened.wait()
        return 7

    def waiters(self) -> int:
        """Return how many calls have begun to wait."""
        return self.waiting

    def open(self) -> None:
        self.opened.set()
