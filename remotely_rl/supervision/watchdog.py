"""Watchdog: kills a process whose environment hangs, and records the stack of the hung thread.

A thread checks when the current step began (flight.py).  Past the limit it writes the stack of the
hung thread into the flight record and kills the process: nothing less ends a thread that waits for
a simulator.

A step that holds the GIL also stops the watchdog's thread.  So whenever the thread runs, it re-arms
a dead man's switch: unless re-armed in time, `faulthandler`, which does not need the GIL, prints
the stacks to stderr and ends the process.  The switch does not know when the step began, and must
not cut off one that holds the GIL for less than the limit, so it is late by up to one period of the
thread.  For the same reason it is paused during other work that may hold the GIL for long.

The switch cannot tell a suspended process (SIGSTOP, a debugger) from one that holds the GIL.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from remotely_rl.supervision.flight import FlightRecord

DEFAULT_S = 300.0  # longer than any step of practical use, and than loading a simulator

# The period of the thread is a hundredth of the limit, within these bounds.
PERIOD_S = (0.05, 1.0)
SWITCH_SAYS = "Timeout ("  # the beginning of the switch's output
SWITCH_EXIT = 1


class Watch(NamedTuple):
    """Arguments for watching the environments of a process."""

    flight: Any  # memory for the flight record; None: private memory of the process
    step_timeout_s: float  # 0: no limit


class Switch:
    """The dead man's switch of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limit_s: float | None = None  # None: it is off
        self._pauses = 0

    def arm(self, limit_s: float) -> None:
        """End the process after this time, unless this is called again before."""
        with self._lock:
            self._limit_s = limit_s
            self._start()

    def cancel(self) -> None:
        """Turn it off."""
        with self._lock:
            self._limit_s = None
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the limit, for work that is not a step of an environment."""
        with self._lock:
            self._pauses += 1
            if self._limit_s is not None:
                faulthandler.cancel_dump_traceback_later()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                self._start()

    def _start(self) -> None:
        if self._limit_s is not None and not self._pauses:
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=2)


SWITCH = Switch()


class Watchdog:
    """Watches the steps of a record.  One per process, because there is one switch."""

    def __init__(
        self,
        record: FlightRecord,
        limit_s: float,
        end: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGKILL),
        has_switch: bool = True,
    ):
        self.record = record
        self._limit_s = limit_s
        self._period_s = min(max(limit_s / 100, PERIOD_S[0]), PERIOD_S[1])
        self._end = end
        self._has_switch = has_switch
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()
        if self._has_switch:
            SWITCH.cancel()

    def _watch(self) -> None:
        wait_s = 0.0
        while not self._closed.wait(wait_s):
            if self._has_switch:
                SWITCH.arm(self._limit_s + self._period_s)
            wait_s = self._period_s
            if self.record.busy:
                left_s = self.record.began_at + self._limit_s - time.monotonic()
                if left_s <= 0 and self.record.busy:
                    self.record.hung(_stack_of(self.record.thread), self._limit_s)
                    self._end()
                    return
                wait_s = min(wait_s, max(left_s, 0.001))


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)
    lines = [] if frame is None else traceback.format_stack(frame)
    return "".join(["Traceback (most recent call last):\n", *lines]).rstrip()
