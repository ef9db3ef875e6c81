"""Measured values: one for each system, figure and round."""

import statistics
from collections.abc import Iterable
from typing import NamedTuple


class Spread(NamedTuple):
    median: float
    low: float
    high: float
    rounds: int

    def __format__(self, spec: str) -> str:
        """Return "median (low-high)", each number by `spec`."""
        return f"{self.median:{spec}} ({self.low:{spec}}-{self.high:{spec}})"


def spread(values: Iterable[float]) -> Spread:
    known = sorted(values)
    return Spread(statistics.median(known), known[0], known[-1], len(known))


class Figures:
    def __init__(self) -> None:
        self._of: dict[tuple[str, str], dict[int, float]] = {}
        self._why: dict[tuple[str, str], str] = {}

    def add(self, system: str, figure: str, number: int, value: float) -> None:
        """Record a system's value in the round of this number."""
        self._of.setdefault((system, figure), {})[number] = value

    def miss(self, system: str, figure: str, why: str) -> None:
        """Record why a system has no value of a figure, or of a whole part."""
        self._why[system, figure] = why

    def of(self, system: str, figure: str) -> dict[int, float]:
        """Return the values by round, empty if it was not measured."""
        return self._of.get((system, figure), {})

    def why_not(self, system: str, figure: str) -> str:
        """Return why the figure or its part was not measured, empty if unknown."""
        return next(
            (
                why
                for (missing, what), why in self._why.items()
                if missing == system and f"{figure}_".startswith(f"{what}_")
            ),
            "",
        )

    def spread(self, system: str, figure: str) -> Spread | None:
        values = self.of(system, figure)
        return spread(values.values()) if values else None

    def to_json(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = [
            {"system": system, "figure": figure, "by_round": by_round}
            for (system, figure), by_round in self._of.items()
        ]
        for (system, figure), why in self._why.items():
            rows.append({"system": system, "figure": figure, "why_not": why})
        return rows

    @classmethod
    def from_json(cls, rows: list[dict[str, object]]) -> "Figures":
        figures = cls()
        for row in rows:
            system, figure = str(row["system"]), str(row["figure"])
            if "why_not" in row:
                figures.miss(system, figure, str(row["why_not"]))
                continue
            assert isinstance(row["by_round"], dict)
            for number, value in row["by_round"].items():
                figures.add(system, figure, int(number), value)
        return figures
