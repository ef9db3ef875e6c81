"""CrashRate: tells a flaky environment from a broken one.

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

from collections import deque

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
