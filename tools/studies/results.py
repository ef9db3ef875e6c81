"""A study: its command line, its rows in a CSV, and the figure and table made of them."""

import argparse
import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tools.bench.benchmark import ROOT
from tools.runs import FOLDER

IMAGES = ROOT / "docs" / "img"

Row = TypeVar("Row")  # a NamedTuple of numbers and words


def command(name: str, doc: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """The command line of a study, whose runs are to be in this process."""
    os.environ["REMOTELY_LOCAL"] = "1"
    parser = command_line.parser(f"python -m tools.studies.{name}", doc)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(seeds))
    return parser


def study(
    name: str,
    kind: Callable[..., Row],
    runs: Mapping[Any, Callable[[], Sequence[Row]]],
    draw: Callable[[Sequence[Row], Path], None],
    table: Callable[[Sequence[Row]], str],
) -> None:
    """Make the runs that are not in the CSV yet; draw and print what is in it then.

    A run has a key: the first fields of its rows.
    """
    file = FOLDER / f"batch-{name}.csv"
    there: list[Any] = read(file, kind)
    for key, run in runs.items():
        if all(row[: len(key)] != key for row in there):
            rows = run()
            add(file, rows)
            print(rows[-1], flush=True)
    rows = read(file, kind)
    draw(rows, IMAGES / f"batch-{name}.png")
    print(table(rows))


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
    file.parent.mkdir(exist_ok=True)
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
