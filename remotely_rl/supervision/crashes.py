"""Crashes: tells of the crashes of a run, and ends a run that has too many.

The first crash of each cause is told at once, with its details.  After that a message comes at most
once a minute: it tells the last crash, and how many there were.
"""

import time
from collections.abc import Callable

from remotely_rl.errors import TrainingError
from remotely_rl.supervision.rate import MAX_RATE, CrashRate
from remotely_rl.supervision.report import Cause, CrashReport

TELL_EVERY_S = 60.0


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
