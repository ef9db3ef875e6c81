"""What a client asks the master, and waits for."""

import threading
from concurrent.futures import Future
from typing import Any

import msgspec


class Question(Future[Any]):
    """What the master was asked.  It is asked again when the line to it, or it, is a new one."""

    def __init__(self, message: msgspec.Struct) -> None:
        super().__init__()
        self.message = message
        # Not the future's own condition: `result()` that is woken takes it for the time's end.
        self._has_news = news = threading.Event()
        self.add_done_callback(lambda _: news.set())

    def wait_for_room(self) -> None:
        """There is none yet, the master says."""
        self._has_news.set()

    def has_room(self) -> bool:
        """Wait for the answer, or for the word that it will be long in coming."""
        self._has_news.wait()
        return self.done()
