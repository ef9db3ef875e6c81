"""Simulations as CSV, chart and table, and the page of the results."""

import csv
import os
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from remotely_rl.sync.simulation.simulator import Row
from remotely_rl.sync.simulation.study import record
from tools import tables
from tools.bench.benchmark import ROOT
from tools.bench.page import commit, replaced
from tools.sync.paper import LAST, Run

PAGE = ROOT / "docs" / "lab" / "sync.md"
IMAGES = ROOT / "docs" / "img"
CODE = ("remotely", "remotely_rl", "tools/sync")
GOAL = 0.8  # the accuracy whose simulated time is compared


class Curve(NamedTuple):
    """One rule's evaluations on the test set, with the columns of the CSV."""

    panel: str
    spec: str
    looks: list[dict[str, float]]


def fill(name: str, table: str, measured: bool = True) -> None:
    """Write a table between its marks, under its command: the new one, or the page's."""
    begins, ends = f"<!-- {name} begins -->", f"<!-- {name} ends -->"
    text = PAGE.read_text()
    how = f"`python -m tools.sync {name}` at {commit(CODE)}, on {os.cpu_count()} cores."
    if not measured:
        how = text.partition(begins)[2].strip().partition("\n")[0]
    PAGE.write_text(replaced(text, begins, ends, f"{how}\n\n{table}"))


def write(path: Path, done: Sequence[tuple[Run, list[Row]]]) -> None:
    """Write a figure's simulations to a CSV."""
    records = [{"panel": run.panel, **record(run.spec, row)} for run, rows in done for row in rows]
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)


def read(path: Path) -> list[Curve]:
    """Return the simulations of a CSV."""
    curves: dict[tuple[str, str], Curve] = {}
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            key = line.pop("panel"), line.pop("rule")
            looks = curves.setdefault(key, Curve(*key, [])).looks
            looks.append({name: float(value) for name, value in line.items()})
    return list(curves.values())


def draw(curves: Sequence[Curve], png: Path) -> None:
    """Draw the test loss in panels, over simulated time if there is a clock."""
    panels = list(dict.fromkeys(curve.panel for curve in curves))
    across = next(many for many in (4, 3, 2, 1) if len(panels) % many == 0)
    down = len(panels) // across
    figure = Figure(figsize=(4 * across, 3.5 * down), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    short = labels([curve.spec for curve in curves])
    for axis, panel in zip(axes.flat, panels, strict=False):
        shown = [curve for curve in curves if curve.panel == panel]
        over, label = _axis(shown)
        for curve in shown:
            loss = [look["loss"] for look in curve.looks]
            axis.plot([over(look) for look in curve.looks], loss, label=short[curve.spec])
        axis.set_title(panel, fontsize=10)
        axis.set_xlabel(label)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    for axis in axes[:, 0]:
        axis.set_ylabel("test loss")
    figure.savefig(png, dpi=110)


def labels(specs: Sequence[str]) -> dict[str, str]:
    """Return each spec without the settings that all specs of its rule share."""
    split = {spec: (spec.partition(":")[0], spec.partition(":")[2].split(",")) for spec in specs}

    def differing(spec: str) -> Iterator[str]:
        rule, settings = split[spec]
        for setting in settings:
            if not all(setting in others for other, others in split.values() if other == rule):
                yield setting

    return {spec: " ".join((split[spec][0], *differing(spec))) for spec in specs}


def table(curves: Sequence[Curve]) -> str:
    """Return the last results in Markdown: a column per rule, or a line per spec of one rule."""
    lasts = f"means of the last {LAST} looks"
    cells = {(curve.panel, rule_of(curve)): curve for curve in curves}
    if len(cells) == len(curves):
        has_clock = curves[0].looks[-1]["time_s"]
        other = f"the simulated time to {GOAL:.0%}" if has_clock else "accuracy"
        second = _first if has_clock else _accuracy
        ends = {
            place: f"{_mean(curve, 'loss'):.3f}, {second(curve)}" for place, curve in cells.items()
        }
        return f"Test loss and {other}; {lasts}.\n\n{tables.pivoted(ends)}"
    rows = [
        [
            curve.panel,
            labels([one.spec for one in curves])[curve.spec],
            f"{_mean(curve, 'loss'):.3f}",
            _accuracy(curve),
            *(f"{curve.looks[-1][name]:,.0f}" for name in ("pushes", "fetches", "staleness")),
        ]
        for curve in curves
    ]
    head = ["", "rule", "test loss", "accuracy", "pushes", "fetches", "staleness"]
    return f"Test loss and accuracy are {lasts}.\n\n{tables.table(head, grouped(rows))}"


def rule_of(run: Curve) -> str:
    """Return a run's rule: its name, and the gradients of a step as a fraction of N clients."""
    rule, _, settings = run.spec.partition(":")
    needed = re.search(r"\bn=(\d+)", settings)
    clients = re.search(r"(\d+) (?:clients|workers)", run.panel)
    if needed is None or clients is None:
        return f"`{rule}`"
    return f"`{rule}`, n = N / {int(clients[1]) // int(needed[1])}"


def _accuracy(curve: Curve) -> str:
    deviation = statistics.pstdev(look["accuracy"] for look in curve.looks[-LAST:])
    return f"{_mean(curve, 'accuracy'):.1%} ± {deviation:.1%}"


def _mean(curve: Curve, name: str) -> float:
    return statistics.mean(look[name] for look in curve.looks[-LAST:])


def grouped(rows: Sequence[list[str]]) -> list[list[str]]:
    """Return the rows, with the name of a group only in its first row."""
    names = [None, *(row[0] for row in rows)]
    return [
        ["" if row[0] == name else row[0], *row[1:]] for row, name in zip(rows, names, strict=False)
    ]


def _first(curve: Curve) -> str:
    """Return the simulated time to the goal."""
    times = (look["time_s"] for look in curve.looks if look["accuracy"] >= GOAL)
    return next((f"{time:,.1f} s" for time in times), "never")


def _axis(curves: Sequence[Curve]) -> tuple[Callable[[dict[str, float]], float], str]:
    if any(curve.looks[-1]["time_s"] for curve in curves):
        return (lambda look: look["time_s"]), "simulated seconds"
    return (lambda look: look["iteration"] / 1000), "thousand pushes"
