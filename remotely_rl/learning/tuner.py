"""GA3C's dynamic adjustment: finds by trial how many agents, predictors and trainers are best.

Babaeizadeh et al. 2017, https://arxiv.org/abs/1611.06256, section 4.2.  From time to time
each count takes a step of -1, 0 or 1 at random; the rate of training is measured for a while,
and if it is lower than before, the step is undone.  There is no clock in here: the caller
passes the time.
"""

import random
from collections.abc import Mapping


class Tuner:
    """Counts that stay between 1 and their limits."""

    def __init__(self, counts: Mapping[str, int], limits: Mapping[str, int], seed: int = 0):
        self.counts = dict(counts)
        self.limits = dict(limits)
        self._random = random.Random(seed)
        self._before: dict[str, int] | None = None
        self._best = 0.0

    def judge(self, rate: float) -> dict[str, int]:
        """Takes the rate that the current counts gave; returns the counts to continue with.

        A change that lowers the rate is undone; the next call then measures the counts of before
        again.
        """
        if self._before is not None and rate < self._best:
            self.counts, self._before = self._before, None
            return dict(self.counts)
        self._best = rate
        self._before = dict(self.counts)
        if all(limit == 1 for limit in self.limits.values()):
            return dict(self.counts)
        while self.counts == self._before:
            for name, count in self._before.items():
                step = self._random.choice((-1, 0, 1))
                self.counts[name] = min(max(1, count + step), self.limits[name])
        return dict(self.counts)


class RateWindow:
    """Counts updates in windows of time."""

    def __init__(self, begins: float, length: float):
        self._begins = begins
        self._length = length
        self._count = 0

    def add(self, count: int, now: float) -> float | None:
        """Counts the updates that came by `now`; returns the rate of a window when it ends."""
        if now < self._begins:
            return None
        self._count += count
        if now < self._begins + self._length:
            return None
        rate = self._count / (now - self._begins)
        self._begins, self._count = now, 0
        return rate
