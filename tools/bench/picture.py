"""The chart of a run: a panel for each row that other systems measured too."""

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl

from tools.bench.benchmark import Benchmark
from tools.bench.figures import Figures, Spread
from tools.bench.rows import OURS, Row
from tools.bench.table import beside
from tools.bench.units import shown

OUR_COLOUR, LIMIT_COLOUR, PEER_COLOUR = "#c2410c", "#64748b", "#cbd5e1"
COLUMNS = 3
TITLE_WIDTH = 48  # characters

Line = tuple[str, str, str, Spread]  # system, title, figure, value


def draw(bench: Benchmark, figures: Figures, subtitle: str, file: Path) -> None:
    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of its backend

    panels = [
        (row, found) for row in bench.rows if len(found := lines_of(row, figures, bench.titles)) > 1
    ]
    if not panels:
        raise SystemExit("nothing to draw: no figure of ours was measured by another system")
    rows = [panels[i : i + COLUMNS] for i in range(0, len(panels), COLUMNS)]
    room = [1 + max(len(found) for _, found in row) for row in rows]  # bars have one height
    figure, axes = plt.subplots(
        len(rows),
        COLUMNS,
        figsize=(15, 0.28 * sum(room) + 1),
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": room},
    )
    for number, (place, (row, found)) in enumerate(zip(axes.flat, panels, strict=False)):
        _panel(bench, place, row, found, room[number // COLUMNS])
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    figure.suptitle(f"remotely and others\n{subtitle}", fontsize=11)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def lines_of(row: Row, figures: Figures, titles: dict[str, str]) -> list[Line]:
    """Return the lines of a panel, best first; empty without ours."""
    named = [(system, titles[system], row.figure) for system in titles] + [
        (term.system, term.title, term.figure) for term in beside(row) if term.system != OURS
    ]
    found = [
        (system, title, figure, spread)
        for system, title, figure in named
        if (spread := figures.spread(system, figure)) and spread.median > 0
    ]
    if not any(system == OURS for system, *_ in found):
        return []
    return sorted(found, key=lambda line: line[3].median, reverse=_more_is_better(row))


def _panel(bench: Benchmark, place: Any, row: Row, found: list[Line], room: int) -> None:
    for height, (system, _, figure, spread) in enumerate(reversed(found)):
        is_limit = bench.systems[system].is_limit
        colour = OUR_COLOUR if system == OURS else LIMIT_COLOUR if is_limit else PEER_COLOUR
        error = [[spread.median - spread.low], [spread.high - spread.median]]
        place.barh(height, spread.median, color=colour, height=0.7)
        place.errorbar(spread.median, height, xerr=error, color="#334155", linewidth=1)
        place.annotate(
            shown(figure, spread.median),
            (spread.high, height),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    place.set_yticks(range(len(found)), [title for _, title, *_ in reversed(found)], fontsize=8)
    place.set_ylim(len(found) - 0.4 - room, len(found) - 0.4)
    values = [spread.median for *_, spread in found]
    if bench.is_logarithmic:
        place.set_xscale("log")
        place.set_xlim(min(values) / 3, max(values) * 6)
    else:
        place.set_xlim(0, max(values) * 1.4)
    place.set_xticks([])
    place.minorticks_off()
    place.spines[["top", "right", "bottom"]].set_visible(False)
    better = "more" if _more_is_better(row) else "less"
    title = f"{row.title.replace('`', '')} ({better} is better)"
    place.set_title(textwrap.fill(title, TITLE_WIDTH), fontsize=9, loc="left")


def _more_is_better(row: Row) -> bool:
    return row.figure.endswith("_per_s")
