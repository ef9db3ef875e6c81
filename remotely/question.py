"""What a client asks the master, and waits for."""

from concurrent.futures import Future
from typing import Any

import msgspec


class Question(Future[Any]):
    """What the master was asked.  It is asked again when the line to it, or it, is a new one."""

    def __init__(self, message: msgspec.Struct) -> None:
        super().__init__()
        self.message = message
        self._waits_for_room = False

    def wait_for_room(self) -> None:
        """There is none yet, the master says."""
        with self._condition:
            self._waits_for_room = True
            self._condition.notify_all()

    def has_room(self) -> bool:
        """Wait for the answer, or for the word that it will be long in coming."""
        with self._condition:
            self._condition.wait_for(lambda: self._waits_for_room or self.done())
            return self.done()
