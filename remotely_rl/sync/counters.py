"""Counters of what a rule received and sent."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Pushes and fetches by what became of them, bytes of vectors, a histogram of staleness."""

    pushes: int = 0
    withheld_pushes: int = 0
    refused: int = 0
    counted: int = 0
    weak: int = 0
    dropped: int = 0
    fetches: int = 0
    withheld_fetches: int = 0
    bytes_pushed: int = 0
    bytes_fetched: int = 0
    staleness: Counter[int] = field(default_factory=Counter)

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of all pushes."""
        count = self.staleness.total()
        return sum(tau * n for tau, n in self.staleness.items()) / count if count else 0.0
