"""Finding how many of each, by trying: GA3C's dynamic adjustment.

Babaeizadeh et al. 2017, https://arxiv.org/abs/1611.06256, section 4.2.  From time to time
each count takes a step of -1, 0 or 1 at random; the rate is measured for a while, and if it
is lower than before, the step is taken back.  No clock in here: who uses it measures.
"""

import random
from collections.abc import Mapping


class Tuner:
    """Counts that are never below 1, nor above their limits."""

    def __init__(self, counts: Mapping[str, int], limits: Mapping[str, int], seed: int = 0):
        self.counts = dict(counts)
        self.limits = dict(limits)
        self._random = random.Random(seed)
        self._before: dict[str, int] | None = None
        self._best = 0.0

    def judge(self, rate: float) -> dict[str, int]:
        """Takes the rate that the counts of now gave; returns the counts to go on with.

        Every other call only tries what the one before has changed: a change that lowers the
        rate is taken back, and then the rate is that of the counts before.
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
