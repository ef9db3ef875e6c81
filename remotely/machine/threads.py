"""The making of threads.  All are daemons: none keeps the process from ending.

A signal for the process may be lost on the main thread while another thread makes a thread.  The
kernel wakes the main thread, which sleeps in a `read`, say.  But `pthread_create` blocks all
signals while it works, and a thread that unblocks a signal takes it, if the main thread has not
yet.  That finds none then and sleeps on: Ctrl-C at an `input()` would do nothing until a line is
typed, as Python runs handlers on the main thread alone.  So:

    1. a thread that is not the main one blocks the signals that programs handle
    2. it makes another, which begins with them blocked
    3. each of the two waits until none is pending: the main thread has taken it
    4. and restores its mask, which processes inherit that the user's code starts there

A signal between 3 and 4 is still lost so: some microseconds are left of a tenth of a millisecond.
"""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from remotely.machine.interrupts import is_main_thread
from remotely.machine.shield import SIGNALS, shield

TAKEN_WITHIN_S = 1.0  # a main thread that blocks signals itself never takes them
TAKEN_POLL_S = 0.001


class _Thread(threading.Thread):
    _mask: Any = None  # the signals that are blocked in the thread that makes this one

    def start(self) -> None:
        if not is_main_thread() and hasattr(signal, "pthread_sigmask"):  # Windows has none
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # 1
        try:
            with shield:  # an interrupted `start` holds a lock for which the new thread would wait
                super().start()  # 2
        finally:
            self._restore_mask()

    def run(self) -> None:
        self._restore_mask()
        super().run()

    def _restore_mask(self) -> None:
        if self._mask is None:
            return
        ends = time.monotonic() + TAKEN_WITHIN_S
        while signal.sigpending() - self._mask and time.monotonic() < ends:
            time.sleep(TAKEN_POLL_S)  # 3
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)  # 4


def new(name: str, run: Callable[..., object], *args: object) -> threading.Thread:
    """Return a thread `remotely-<name>`, not started, for `run(*args)`."""
    return _Thread(target=run, args=args, name=f"remotely-{name}", daemon=True)


def start(name: str, run: Callable[..., object], *args: object) -> threading.Thread:
    """Start such a thread, and return it.

    Raises RuntimeError if no thread can be started: the script has ended, or there are too many.
    """
    thread = new(name, run, *args)
    thread.start()
    return thread
