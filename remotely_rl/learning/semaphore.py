"""A semaphore whose count can be changed while threads hold it."""

import threading


class ResizableSemaphore:
    """Lets `count` threads in at a time; the others wait."""

    def __init__(self, count: int):
        self._free = count
        self._count = count
        self._changed = threading.Condition()

    def resize(self, count: int) -> None:
        with self._changed:
            self._free += count - self._count
            self._count = count
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0)
            self._free -= 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()
