"""The units of values, where they are not those of rewards (`config/on_policy.py`)."""

import math

from torch import Tensor


class ValueScale:
    """Running mean and standard deviation of value targets; old targets fade."""

    def __init__(self, mean: float = 0.0, variance: float = 1.0, count: float = 0.0):
        self.mean = mean
        self.variance = variance
        self.count = count

    @property
    def moments(self) -> tuple[float, float, float]:
        """What it is made of: pass these to make another."""
        return self.mean, self.variance, self.count

    @property
    def std(self) -> float:
        return max(math.sqrt(self.variance), 1e-3)  # exactly 1 where nothing is normalized

    def update(self, targets: Tensor, horizon: int = 100_000) -> None:
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

    def normalize(self, value: Tensor) -> Tensor:
        """Values in units of rewards, as the model learns them."""
        return (value - self.mean) / self.std

    def denormalize(self, value: Tensor) -> Tensor:
        """Values as the model predicts them, in units of rewards."""
        return value * self.std + self.mean
