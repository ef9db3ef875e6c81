"""Watchdog: ends a process whose environment does not return, and leaves word of where it hangs.

A thread looks when the present step began (flight.py).  Past the limit it writes the stack of the
thread that hangs into the flight record, and kills the process: nothing less ends a thread that
waits for a simulator.

A step that holds the GIL keeps the watchdog's thread from running as well.  So the thread winds up
a dead man's switch whenever it runs: `faulthandler`, which needs no GIL, prints the stacks to
stderr and ends the process.  The switch cannot know when the step began, and must not cut off one
that holds the GIL for less than the limit; hence it is late by up to a period of this thread.  For
the same reason it is paused around work that is no step and may hold the GIL for long.

It cannot tell a process that is suspended (SIGSTOP, a debugger) from one that holds the GIL.
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

DEFAULT_S = 300.0  # no step takes as long in which one would train, nor does loading a simulator

# How often the thread runs: a hundredth of the limit, within these bounds.
PERIOD_S = (0.05, 1.0)
SWITCH_SAYS = "Timeout ("  # the first word of what the switch prints
SWITCH_EXIT = 1


class Watch(NamedTuple):
    """How the environments of a process are watched over."""

    flight: Any  # memory for the flight record; None: of this process alone
    step_timeout_s: float  # 0: no limit


class Switch:
    """The dead man's switch of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limit_s: float | None = None  # None: it is off
        self._pauses = 0

    def wind_up(self, limit_s: float) -> None:
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
        """Let the process take as long as it likes, for what is no step of an environment."""
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
    """Watches over the steps in a record.  One a process: there is one dead man's switch."""

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
                SWITCH.wind_up(self._limit_s + self._period_s)
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
