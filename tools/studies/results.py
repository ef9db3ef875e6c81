"""A study: its command line, its rows in a file, and their figure and table."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tools import command_line, runs
from tools.bench.benchmark import ROOT

IMAGES = ROOT / "docs" / "img"

Row = TypeVar("Row")  # a NamedTuple of numbers and texts


def command(name: str, doc: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Return the parser of a study, whose runs are in this process."""
    os.environ["REMOTELY_LOCAL"] = "1"
    parser = command_line.parser(f"python -m tools.studies.{name}", doc)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(seeds))
    return parser


def study(
    name: str,
    kind: Callable[..., Row],
    wanted: Mapping[Any, Callable[[], Sequence[Row]]],
    draw: Callable[[Sequence[Row], Path], None],
    table: Callable[[Sequence[Row]], str],
) -> None:
    """Make the runs that are not in the file; draw and print all.

    The key of a run is the first fields of its rows.
    """
    file = runs.FOLDER / f"batch-{name}.jsonl"
    known: list[Any] = runs.read(file, kind)
    for key, run in wanted.items():
        if all(row[: len(key)] != key for row in known):
            rows = run()
            runs.add(file, *rows)
            print(rows[-1], flush=True)
    rows = runs.read(file, kind)
    draw(rows, IMAGES / f"batch-{name}.png")
    print(table(rows))


def panels(across: int, down: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of empty panels, and the panels row by row."""
    figure = Figure(figsize=(4 * across, 3.4 * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis in axes:
        axis.grid(alpha=0.3)
    return figure, axes
