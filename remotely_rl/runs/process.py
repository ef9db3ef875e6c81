"""State of its process that a run changes, and restores at its end.

    torch's threads     their number, to suit the algorithm
    random numbers      torch's global generator starts at the run's seed, for the parts of a
                        model that draw from it: initial weights, dropout
    SIGINT, SIGTERM     the first asks the run to stop, the second interrupts it immediately

The library itself draws from its own generators, so runs in several threads of one process do not
affect each other, except through dropout, which has no generator.  Python handles signals only in
the main thread: runs in other threads stop gracefully when a KeyboardInterrupt propagates through
the main thread or has ended it.
"""

import signal
import sys
import threading
from types import FrameType
from typing import Any

import torch

# How a run ends by Ctrl-C or SIGTERM; the rest is the name of the signal.
STOPPED_BY = "stopped by SIG"


class Process:
    """Process-wide state that a run changes: saved when this is made, and restored at the end."""

    def __init__(self) -> None:
        self._asked = ""
        self._is_in_main = threading.current_thread() is threading.main_thread()
        self._threads = torch.get_num_threads()
        self._random = torch.get_rng_state()
        self._handlers: dict[int, Any] = {}

    @property
    def asked_to_stop(self) -> str:
        """Why the run is asked to stop, or an empty string."""
        if not (self._asked or self._is_in_main) and main_is_interrupted():
            self._asked = f"{STOPPED_BY}INT"
        return self._asked

    def listen(self) -> None:
        """Install the signal handlers; in the main thread only, where Python allows it."""
        if self._is_in_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Restore the saved state."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        torch.set_num_threads(self._threads)
        torch.set_rng_state(self._random)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = STOPPED_BY + signal.Signals(number).name.removeprefix("SIG")


def main_is_interrupted() -> bool:
    """Whether a KeyboardInterrupt propagates through the main thread, or has ended it.

    Meanwhile the main thread may wait for others: in a `finally`, or leaving a ThreadPoolExecutor.
    """
    main = threading.main_thread()
    if not main.is_alive():
        return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    handled: Any = sys._current_exceptions().get(main.ident or 0)
    # Python 3.11 returns the sys.exc_info() tuple of each thread.
    error = handled[1] if isinstance(handled, tuple) else handled
    return isinstance(error, KeyboardInterrupt)
