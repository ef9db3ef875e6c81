"""Results of a study: rows in a CSV, from which a figure is drawn."""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tools.bench.benchmark import ROOT

IMAGES = ROOT / "docs" / "img"

Row = TypeVar("Row")  # a NamedTuple of numbers and words


def read(file: Path, kind: Callable[..., Row]) -> list[Row]:
    """All rows so far; none if there is no such file."""
    if not file.exists():
        return []
    types: dict[str, type] = kind.__annotations__
    with file.open(newline="") as lines:
        return [
            kind(**{name: types[name](word) for name, word in line.items()})
            for line in csv.DictReader(lines)
        ]


def add(file: Path, rows: Iterable[Any]) -> None:
    """Add the rows of a run that has ended; floats to six digits."""
    lines = [
        {name: f"{x:.6g}" if isinstance(x, float) else x for name, x in row._asdict().items()}
        for row in rows
    ]
    is_new = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.DictWriter(opened, list(lines[0]), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerows(lines)


def panels(across: int, down: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of empty panels, row by row."""
    figure = Figure(figsize=(4 * across, 3.4 * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis in axes:
        axis.grid(alpha=0.3)
    return figure, axes
