"""The units in which values are learnt, where they are not those of rewards (`config.py`)."""

import math

from torch import Tensor


class Scale:
    """Running mean and deviation of value targets; old ones fade."""

    def __init__(self, mean: float = 0.0, variance: float = 1.0, count: float = 0.0):
        self.mean = mean
        self.variance = variance
        self.count = count

    @property
    def moments(self) -> tuple[float, float, float]:
        """What it is made of."""
        return self.mean, self.variance, self.count

    @property
    def deviation(self) -> float:
        return max(math.sqrt(self.variance), 1e-3)  # exactly 1 where nothing is scaled

    def count_in(self, targets: Tensor, horizon: int = 100_000) -> None:
        """Counts targets in (Chan et al.'s parallel update)."""
        rows = targets.numel()
        total = self.count + rows
        away = float(targets.mean()) - self.mean
        spread = float(targets.var(correction=0))
        self.variance = (
            self.variance * self.count + spread * rows + away**2 * self.count * rows / total
        ) / total
        self.mean += away * rows / total
        self.count = min(total, horizon)
