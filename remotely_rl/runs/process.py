"""What a run changes in its process, and restores when it ends.

    threads of torch    as many as fit the algorithm
    random numbers      torch's global generator starts at the run's seed, for the parts of a
                        model that draw from it: initial weights, dropout
    SIGINT, SIGTERM     ask the run to stop; the second one interrupts it at once

The library itself draws from generators of its own.  So runs in several threads of one process
do not disturb each other, except for dropout, which has no generator.  Python tells of signals in
the main thread alone: runs in other threads stop in good order if a KeyboardInterrupt is on its
way through that thread, or has ended it.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

# Networks are made one at a time: their initial weights come from the global generator.
MODEL_LOCK = threading.Lock()


class Process:
    """Remembers the state of the process when it is made, to restore it."""

    def __init__(self) -> None:
        self._asked = ""
        self._is_in_main = threading.current_thread() is threading.main_thread()
        self._threads = torch.get_num_threads()
        self._random = torch.get_rng_state()
        self._handlers: dict[int, Any] = {}

    @property
    def asked_to_stop(self) -> str:
        """What asks the run to stop, or an empty string."""
        if not (self._asked or self._is_in_main) and main_is_interrupted():
            self._asked = "stopped by SIGINT"
        return self._asked

    def listen(self) -> None:
        """From here on signals ask to stop; only in the main thread, as Python has it."""
        if self._is_in_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Restores all of it."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        torch.set_num_threads(self._threads)
        torch.set_rng_state(self._random)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = f"stopped by {signal.Signals(number).name}"


def main_is_interrupted() -> bool:
    """Whether the main thread handles a KeyboardInterrupt, or was ended by one.

    It may wait for other threads as it does: in a `finally`, or where a ThreadPoolExecutor ends.
    """
    main = threading.main_thread()
    if not main.is_alive():
        return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    handled: Any = sys._current_exceptions().get(main.ident or 0)
    # Python 3.11 gives what sys.exc_info() returns there.
    error = handled[1] if isinstance(handled, tuple) else handled
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it, torch computes in one thread.

    A few observations at a time are not enough work for more, and results then do not depend on
    the number of threads set before.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
