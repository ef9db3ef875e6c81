"""Crashes: tells of the crashes of a run, and ends a run that has too many (CrashRate).

The first crash of each cause is told at once, with its details.  After that a message comes at most
once a minute: it tells the last crash, and how many there were.

Simulators that crash once in a few thousand steps are common, and with 64 environments their
crashes come in bursts.  So neither a number of crashes in a row nor a number a minute means that
training is futile.  What counts is how much experience there is between two crashes.  Over the last
WINDOW crashes:

    all steps    the steps of all environments since the first of them
    own steps    the steps that the crashed environments had lived

A run is broken if both, divided by the number of crashes, are less than 1 / max_rate.  If it were
the first alone, then somebody who kills all actors at once would end the run; if it were the second
alone, 64 healthy environments would, because those that die young are seen first.

With the default of 0.1 an environment that cannot be reset ends the run after WINDOW crashes, and
one that crashes in each hundredth step ends it with a probability of 1e-7 in each window.
"""

import time
from collections import deque
from collections.abc import Callable

from remotely_rl.errors import TrainingError
from remotely_rl.supervision.report import Cause, CrashReport

TELL_EVERY_S = 60.0
WINDOW = 10  # crashes, the last
MAX_RATE = 0.1  # crashes per step


class CrashRate:
    """Counts steps and crashes; a pure object."""

    def __init__(self, max_rate: float = MAX_RATE, window: int = WINDOW):
        """`max_rate`: crashes per step of an environment; 1 or more never is too many."""
        self.max_rate = max_rate
        self.crashes = 0
        self.steps = 0  # of all environments
        self._window = window
        self._last: deque[tuple[int, int]] = deque(maxlen=window)  # all steps by then, own steps

    def stepped(self, steps: int = 1) -> None:
        """Count steps of environments."""
        self.steps += steps

    def crashed(self, lived: int) -> None:
        """Count the crash of an environment that had lived so many steps."""
        self.crashes += 1
        self._last.append((self.steps, lived))

    @property
    def is_too_high(self) -> bool:
        """Whether the run should end."""
        if len(self._last) < self._window or self.max_rate >= 1:
            return False
        least = len(self._last) / self.max_rate if self.max_rate else float("inf")
        return self._all_steps < least and self._own_steps < least

    def __str__(self) -> str:
        return (
            f"the last {len(self._last)} crashes came within {self._all_steps:,} steps of all"
            f" environments, and those that crashed had lived"
            f" {self._own_steps / max(1, len(self._last)):.1f} steps on average"
        )

    @property
    def _all_steps(self) -> int:
        return self.steps - self._last[0][0] if self._last else 0

    @property
    def _own_steps(self) -> int:
        return sum(lived for _, lived in self._last)


class Crashes:
    """The crashes of all environments of a run."""

    def __init__(
        self,
        say: Callable[[str], None],
        max_rate: float = MAX_RATE,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[CrashReport], object] = lambda report: None,
    ):
        """`keep` gets every report, told or not."""
        self.rate = CrashRate(max_rate)
        self.last: CrashReport | None = None
        self._say = say
        self._clock = clock
        self._keep = keep
        self._told_at: float | None = None
        self._untold = 0
        self._told: set[Cause] = set()

    def stepped(self, steps: int) -> None:
        """Count steps of environments."""
        self.rate.stepped(steps)
        if self._untold and self._is_due():
            self.tell()

    def add(self, report: CrashReport) -> None:
        """Count and tell a crash.  Raises TrainingError if there are too many, and what `keep`
        raises.

        A machine that is lost takes many environments with it and says nothing about them: that is
        told, but does not count.
        """
        try:
            self._keep(report)
        finally:
            self._count(report)

    def _count(self, report: CrashReport) -> None:
        self.last = report
        if report.cause is not Cause.LOST:
            self.rate.crashed(report.lived)
        self._untold += 1
        if self._is_due() or report.cause not in self._told:
            self.tell()
        if self.rate.is_too_high:
            self.tell()
            raise TrainingError(
                f"the environments crash too often to learn from: {self.rate}; the last:"
                f" {self.last}. Mend the environment, or allow more with max_crash_rate"
                f" (crashes per step, now {self.rate.max_rate:g})"
            )

    def tell(self) -> None:
        """Tell what was not told yet."""
        if not self._untold or self.last is None:
            return
        report, now = self.last, self._clock()
        if self._untold == 1:
            message = f"{report}; it is replaced"
        else:
            message = (
                f"{self._untold:,} more crashed in {now - (self._told_at or now):.0f} s and were"
                f" replaced; the last: {report}"
            )
        self._untold, self._told_at = 0, now
        self._told.add(report.cause)
        self._say(f"{message}\n{report.details}" if report.details else message)

    def _is_due(self) -> bool:
        return self._told_at is None or self._clock() >= self._told_at + TELL_EVERY_S
