"""The measurement of one actor: its CPU usage, its calls, and what they take."""

import contextlib
import mmap
import time

import psutil

from remotely.protocol import control
from remotely.protocol.measures import NO_METHOD
from remotely.transport import activity

CPU_AT_LEAST_S = 0.2  # CPU time is counted in hundredths of a second
CPU_AT_MOST_S = 8.0  # a longer average would not show the current usage
SHOWN_METHODS = 4  # of an actor: those that took the most time, and those that failed most often


class Gauge:
    """Measures the process that writes an activity page, over intervals that end with reports."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page
        self._process: psutil.Process | None = None
        self._at = 0.0  # the end of the last interval, over which the next three are averages
        self._cpu_percent = self._calls_per_s = self._busy_percent = 0.0
        self._measured = activity.CallTimes()  # then

    def start_measuring(self, pid: int, now: float) -> bool:
        """If the last interval is too old, begin a new one; return whether it was."""
        is_due = now - self._at > CPU_AT_MOST_S
        if is_due:
            self._measure(pid, now)
            self._cpu_percent = self._calls_per_s = self._busy_percent = 0.0
        return is_due

    def figures(self, actor: str, pid: int, calls: int, memory: int) -> control.Figures:
        """Return its CPU usage, its calls and what they took, and this memory."""
        rss, now = 0, time.monotonic()
        if now - self._at >= CPU_AT_LEAST_S:
            self._measure(pid, now)
        if self._process is not None:
            with contextlib.suppress(psutil.Error):
                rss = self._process.memory_info().rss
        seen, stopped = activity.look(self._page), activity.stopped(self._page)
        # What is no method, such as "(an item of a stream)", is shown only to explain errors.
        methods = self._measured.methods
        slowest = [m for m in methods if not m.method.startswith(NO_METHOD)]
        failing = sorted((m for m in methods if m.errors), key=lambda m: -m.errors)
        shown = {*slowest[:SHOWN_METHODS], *failing[:SHOWN_METHODS]}
        return control.Figures(
            actor=actor,
            calls=calls,
            cpu_percent=self._cpu_percent,
            rss=rss,
            memory=memory,
            running=seen.running,
            method=seen.method,
            method_s=seen.method_s,
            calls_per_s=self._calls_per_s,
            busy_percent=self._busy_percent,
            received=self._measured.received,
            sent=self._measured.sent,
            errors=self._measured.errors,
            methods=[
                control.MethodFigures(m.method, m.calls, m.seconds / m.calls, m.p99_s, m.errors)
                for m in methods
                if m in shown
            ],
            metrics=activity.own_metrics_of(self._page),
            stopped_at=stopped.where,
            stopped_s=stopped.seconds,
            is_debugged=stopped.is_debugged,
        )

    def _measure(self, pid: int, now: float) -> None:
        """Measure its CPU usage, and what its calls took, since the last measurement."""
        before, self._measured = self._measured, activity.measured(self._page)
        if (seconds := now - self._at) > 0:
            self._calls_per_s = max(0, self._measured.calls - before.calls) / seconds
            busy = (self._measured.busy_s - before.busy_s) / seconds
            self._busy_percent = 100 * min(1.0, max(0.0, busy))
        with contextlib.suppress(psutil.Error):
            self._process = self._process or psutil.Process(pid)
            self._cpu_percent = self._process.cpu_percent()
        self._at = now
