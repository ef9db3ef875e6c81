"""The phases of a run before its first row, of which the user is told if they take long.

A process loads PyTorch, a cluster starts, an environment is made and tried, actors start, and the
first update compiles: each may take seconds, in which a terminal without a word looks as if it
hung.  A phase that has lasted AFTER_S has a line; one that is shorter has none.
"""

import threading
from collections.abc import Callable
from typing import Protocol

AFTER_S = 2.0


class Cancellable(Protocol):
    """A call that is due later."""

    def start(self) -> None: ...

    def cancel(self) -> None: ...


def daemon_timer(seconds: float, call: Callable[[], None]) -> Cancellable:
    """Return a timer that does not keep its process from ending."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    return timer


class Phases:
    """Tells of the current phase, once, if it takes long.  Its methods may be called anywhere."""

    def __init__(
        self,
        say: Callable[[str], None],
        make_timer: Callable[[float, Callable[[], None]], Cancellable] = daemon_timer,
    ) -> None:
        self._say = say
        self._make_timer = make_timer
        self._lock = threading.Lock()
        self._current = ""
        self._text = ""  # of the current phase, until it has been told
        self._timer: Cancellable | None = None

    def enter(self, text: str) -> None:
        """End the current phase, and begin the one that is described by this line.

        The current phase goes on if this is its line.
        """
        if text == self._current:
            return
        self.end()
        with self._lock:
            self._current = self._text = text
            self._timer = self._make_timer(AFTER_S, self._tell)
            self._timer.start()

    def end(self) -> None:
        """End the current phase, if there is one."""
        with self._lock:
            self._current = self._text = ""
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _tell(self) -> None:
        with self._lock:
            text, self._text = self._text, ""
            if text:
                self._say(f"{text} ...")
