"""Crashes: logs the crashes of a run, and ends a run that has too many (CrashRate).

The first crash of each cause is logged immediately, with its details; after that, at most one
message a minute has the last crash and the number of crashes.

Simulators that crash once in a few thousand steps are common, and with 64 environments the crashes
come in bursts.  So neither a number of crashes in a row nor a number per minute shows that training
is futile; the experience between crashes does.  Over the last WINDOW crashes:

    all steps    the steps of all environments since the first of these crashes
    own steps    the steps that the crashed environments had taken since they were made

A run has too many crashes if both, divided by the number of crashes, are less than 1 / max_rate.
With the first criterion alone, killing all actors at once would end the run.  With the second
alone, 64 healthy environments would, because short-lived ones crash first.

With the default of 0.1, an environment that cannot be reset ends the run after WINDOW crashes, and
one that crashes in one of a hundred steps ends it with a probability of 1e-7 per window.

An environment that always fails late, at its 50th step, passes both.  It cannot be told from one
whose episodes have no end and that seldom crashes, so it does not end the run, but the user is told
at the end that no episode has ended, and why (`instead_of_episodes`).
"""

import time
from collections import Counter, deque
from collections.abc import Callable

from remotely.machine.shield import RLock
from remotely_rl.errors import TrainingError
from remotely_rl.supervision.report import Cause, CrashReport

LOG_EVERY_S = 60.0
WINDOW = 10  # crashes
MAX_RATE = 0.1  # crashes per step


class CrashRate:
    """Counts steps and crashes.  It has no clock and no I/O."""

    def __init__(self, max_rate: float = MAX_RATE, window: int = WINDOW):
        """`max_rate`: crashes per step of an environment; 1 or more is no limit."""
        self.max_rate = max_rate
        self.crashes = 0
        self.steps = 0  # of all environments
        self._window = window
        self._last: deque[tuple[int, int]] = deque(maxlen=window)  # all steps by then; own steps

    def stepped(self, steps: int = 1) -> None:
        """Count steps of environments."""
        self.steps += steps

    def crashed(self, lived: int) -> None:
        """Count the crash of an environment that had taken `lived` steps."""
        self.crashes += 1
        self._last.append((self.steps, lived))

    @property
    def is_too_high(self) -> bool:
        """Whether the run must end."""
        if len(self._last) < self._window or self.max_rate >= 1:
            return False
        least = len(self._last) / self.max_rate if self.max_rate else float("inf")
        return self._all_steps < least and self._own_steps < least

    def __str__(self) -> str:
        return (
            f"the last {len(self._last)} crashes came within {self._all_steps:,} steps of all"
            f" environments, and the crashed ones had taken"
            f" {self._own_steps / max(1, len(self._last)):.1f} steps on average"
        )

    @property
    def _all_steps(self) -> int:
        return self.steps - self._last[0][0] if self._last else 0

    @property
    def _own_steps(self) -> int:
        return sum(lived for _, lived in self._last)


class CrashesInARow:
    """Notices an environment that only crashes, where whole episodes are waited for."""

    def __init__(self) -> None:
        self._in_a_row: Counter[int | None] = Counter()  # by environment; None: of a process

    def ended(self, env: int) -> None:
        """An episode of this environment has ended without a crash."""
        self._in_a_row[env] = self._in_a_row[None] = 0

    def add(self, report: CrashReport) -> None:
        """Count a crash.  Raises TrainingError for the last of WINDOW without a whole episode."""
        self._in_a_row[report.env] += 1
        if self._in_a_row[report.env] >= WINDOW:
            raise TrainingError(
                f"an environment has crashed {WINDOW} times without a whole episode; the last:"
                f" {report}. Fix the environment"
            )


class Crashes:
    """See the module's docstring.  Its methods may be called on any thread."""

    def __init__(
        self,
        say: Callable[[str], None] | None,
        max_rate: float = MAX_RATE,
        clock: Callable[[], float] = time.monotonic,
        keep: Callable[[CrashReport], object] = lambda report: None,
        in_training: bool = True,
    ):
        """Without `say` nothing is logged: the error of too many crashes has the details of the
        first crash of each cause.  `keep` is called with every report, logged or not.  Not
        `in_training`, the user cannot set `max_rate`.
        """
        self.rate = CrashRate(max_rate)
        self.last: CrashReport | None = None
        self._lock = RLock()  # of hosts, each reports on a thread of its own
        self._say = say
        self._clock = clock
        self._keep = keep
        self._in_training = in_training
        self._logged_at: float | None = None
        self._unlogged = 0
        self._logged_causes: set[Cause] = set()
        self._details: dict[Cause, str] = {}  # of the first crash of each cause, without `say`

    def stepped(self, steps: int) -> None:
        """Count steps of environments."""
        with self._lock:
            self.rate.stepped(steps)
            if self._unlogged and self._is_due():
                self.flush()

    def add(self, report: CrashReport) -> None:
        """Count and log a crash.

        The loss of a machine is logged but does not count: it says nothing about the environments.
        Raises TrainingError if there are too many crashes, and what `keep` raises.
        """
        with self._lock:
            try:
                self._keep(report)
            finally:
                self._count(report)

    def _count(self, report: CrashReport) -> None:
        self.last = report
        if report.cause is not Cause.LOST:
            self.rate.crashed(report.lived)
        if self._say is None and report.details:
            self._details.setdefault(report.cause, report.details)
        self._unlogged += 1
        if self._is_due() or report.cause not in self._logged_causes:
            self.flush()
        if self.rate.is_too_high:
            self.flush()
            aim = " to learn from" if self._in_training else ""
            why = f"the environments crash too often{aim}: {self.rate}; the last: {self.last}"
            more = (
                ", or allow more with max_crash_rate= or --max-crash-rate (crashes per step, now"
                f" {self.rate.max_rate:g})"
            )
            fix = f"Fix the environment{more if self._in_training else ''}"
            raise TrainingError("\n".join([f"{why}. {fix}", *self._details.values()]))

    def instead_of_episodes(self, episodes: int) -> str:
        """Return a sentence about crashes, if a run has had some and no whole episode."""
        with self._lock:
            if episodes or self.last is None:
                return ""
            times = "once" if self.rate.crashes == 1 else f"{self.rate.crashes:,} times"
            return (
                f"no episode has ended, and the environments crashed {times} in"
                f" {self.rate.steps:,} steps; the last: {self.last}"
            )

    def flush(self) -> None:
        """Log the crashes since the last message."""
        with self._lock:
            if not self._unlogged or self.last is None:
                return
            report, now = self.last, self._clock()
            if self._unlogged == 1:
                message = f"{report}; it is replaced"
            else:
                message = (
                    f"{self._unlogged:,} more crashed in {now - (self._logged_at or now):.0f} s"
                    f" and were replaced; the last: {report}"
                )
            self._unlogged, self._logged_at = 0, now
            self._logged_causes.add(report.cause)
            if self._say is not None:
                self._say(f"{message}\n{report.details}" if report.details else message)

    def _is_due(self) -> bool:
        return self._logged_at is None or self._clock() >= self._logged_at + LOG_EVERY_S
