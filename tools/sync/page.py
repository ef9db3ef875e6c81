"""Simulations as CSV, PNG and Markdown, and the page that tells of them."""

import csv
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from remotely_rl.sync.simulator import Row
from remotely_rl.sync.study import record
from tools.bench.benchmark import ROOT
from tools.bench.page import commit, replaced
from tools.sync.paper import Run

PAGE = ROOT / "docs" / "sync.md"
IMAGES = ROOT / "docs" / "img"
CODE = ("remotely", "remotely_rl", "tools/sync")

Done = Sequence[tuple[Run, list[Row]]]


def fill(name: str, table: str) -> None:
    """Puts a table between its marks, with what it was measured by."""
    how = f"`python -m tools.sync {name}` at {commit(CODE)}, on {os.cpu_count()} cores."
    text = replaced(
        PAGE.read_text(), f"<!-- {name} begins -->", f"<!-- {name} ends -->", f"{how}\n\n{table}"
    )
    PAGE.write_text(text)


def write(done: Done, folder: Path) -> None:
    """A CSV and a PNG for each figure."""
    for figure in dict.fromkeys(run.figure for run, _ in done):
        of_it = [(run, rows) for run, rows in done if run.figure == figure]
        with (folder / f"sync-{figure}.csv").open("w", newline="") as file:
            records = [
                {"panel": run.panel, **record(run.word, row)} for run, rows in of_it for row in rows
            ]
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(records)
        draw(of_it, folder / f"sync-{figure}.png")


def draw(done: Done, png: Path) -> None:
    """The test loss, a panel beside the other; by the simulated clock where there is one."""
    panels = sorted({run.panel for run, _ in done}, key=[run.panel for run, _ in done].index)
    figure = Figure(figsize=(4 * len(panels), 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, panel in zip(axes, panels, strict=True):
        over, label = _axis([rows for run, rows in done if run.panel == panel])
        for run, rows in done:
            if run.panel == panel:
                y = [row.seen["loss"] for row in rows]
                axis.plot([over(row) for row in rows], y, label=run.word.replace(",rate", "\nrate"))
        axis.set_title(panel, fontsize=10)
        axis.set_xlabel(label)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6)
    axes[0].set_ylabel("test loss")
    figure.savefig(png, dpi=110)


def table(done: Done) -> str:
    """Where each ended, in Markdown."""
    lines = [
        "| figure | rule | test loss | accuracy | pushes | fetches | staleness | clock |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run, rows in done:
        last = rows[-1]
        clock = f"{last.time_s:,.0f} s" if last.time_s else ""
        lines.append(
            f"| {run.panel} | `{run.word}` | {last.seen['loss']:.4f} |"
            f" {last.seen['accuracy']:.4f} | {last.pushes:,} | {last.fetches:,} |"
            f" {last.staleness:.1f} | {clock} |"
        )
    return "\n".join(lines)


def _axis(curves: Sequence[list[Row]]) -> tuple[Callable[[Row], float], str]:
    if any(rows[-1].time_s for rows in curves):
        return (lambda row: row.time_s), "simulated seconds"
    return (lambda row: row.iteration / 1000), "thousand pushes"
