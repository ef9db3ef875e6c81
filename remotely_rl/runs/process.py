"""What a run changes of its process, and puts back when it ends.

    threads of torch    as many as fit the template
    random numbers      the global stream of torch begins at the run's seed, for what of a model
                        draws from it: initial weights, dropout
    SIGINT, SIGTERM     ask the run to stop; the second of them interrupts it at once

What the library itself draws comes from generators of its own.  Runs in several threads of one
process therefore do not disturb each other, but for dropout, which has no generator.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

# Networks are made one at a time: their initial weights come from the global stream.
MODEL_LOCK = threading.Lock()


class Process:
    """Remembers what a run changes, from when it is made."""

    def __init__(self) -> None:
        self.asked_to_stop = ""
        self._threads = torch.get_num_threads()
        self._random = torch.get_rng_state()
        self._handlers: dict[int, Any] = {}

    def listen(self) -> None:
        """From here on signals ask to stop; in any thread but the main one that cannot be had."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Puts all back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        torch.set_num_threads(self._threads)
        torch.set_rng_state(self._random)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked_to_stop:
            raise KeyboardInterrupt
        self.asked_to_stop = f"stopped by {signal.Signals(number).name}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it, torch computes in one thread.

    A few observations at a time are no work for more, and what is computed does not depend on how
    many there were before.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
