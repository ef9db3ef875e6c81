"""What was measured: one value for each system, figure and round."""

import statistics
from collections.abc import Iterable
from typing import NamedTuple


class Spread(NamedTuple):
    median: float
    low: float
    high: float
    rounds: int


def spread(values: Iterable[float]) -> Spread:
    known = sorted(values)
    return Spread(statistics.median(known), known[0], known[-1], len(known))


class Figures:
    def __init__(self) -> None:
        self._of: dict[tuple[str, str], dict[int, float]] = {}

    def add(self, system: str, figure: str, number: int, value: float) -> None:
        """Take note of what a system measured in the round of this number."""
        self._of.setdefault((system, figure), {})[number] = value

    def of(self, system: str, figure: str) -> dict[int, float]:
        """Return the values by round; none where it was not measured."""
        return self._of.get((system, figure), {})

    def spread(self, system: str, figure: str) -> Spread | None:
        values = self.of(system, figure)
        return spread(values.values()) if values else None

    def to_json(self) -> list[dict[str, object]]:
        return [
            {"system": system, "figure": figure, "by_round": by_round}
            for (system, figure), by_round in self._of.items()
        ]

    @classmethod
    def from_json(cls, rows: list[dict[str, object]]) -> "Figures":
        figures = cls()
        for row in rows:
            assert isinstance(row["by_round"], dict)
            for number, value in row["by_round"].items():
                figures.add(str(row["system"]), str(row["figure"]), int(number), value)
        return figures
