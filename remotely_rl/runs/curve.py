"""Learning curves: mean return over time and over steps."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl.errors import TrainingError
from remotely_rl.runs import metrics, run_folder
from remotely_rl.runs.metrics import Row
from remotely_rl.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = NDArray[np.float64]

# The x axes of a curve: name, label, and the value of a row.
OVER: dict[str, tuple[str, Callable[[Row], float]]] = {
    "minutes": ("minutes", lambda row: row["time/seconds"] / 60),
    "steps": ("million steps", lambda row: row["time/env_steps"] / 1e6),
}

GRID_POINTS = 400


# Settings in which the runs of one line may differ: randomness, limits and speed.
CHANCE = {
    "env", "seed", "total_steps", "minutes", "target", "log_interval_s",
    "checkpoint_interval_s", "device", "learner_threads", "compile",
}  # fmt: skip


class Group(NamedTuple):
    """Runs that differ only by chance: their settings, and the rows of each."""

    name: str
    settings: dict[str, Any]
    runs: list[list[Row]]


class Band(NamedTuple):
    """A mean and its extremes on a grid, each [points]."""

    x: Line
    mean: Line
    low: Line
    high: Line


def draw(metrics_csv: Path, png: Path, title: str) -> bool:
    """Draws curve.png from metrics.csv.  Returns whether any episode had ended to draw."""
    rows = _finished(metrics_csv)
    if not rows:
        return False
    figure, panels = _figure(list(OVER))
    for axis, over in zip(panels, OVER, strict=True):
        x = _over(rows, over)
        axis.plot(x, [row["rollout/return_interval"] for row in rows], color="tab:blue", alpha=0.25)
        axis.plot(x, [row["rollout/return_mean"] for row in rows], color="tab:blue")
    panels[0].set_ylabel(f"return, mean of last {metrics.RETURN_WINDOW} (pale: of an interval)")
    figure.suptitle(title)
    figure.savefig(png, dpi=120)
    return True


def compare(runs: Sequence[str | Path], png: str | Path, over: str | None = None) -> list[Path]:
    """Draws several runs, over "minutes", "steps" or both; returns those with nothing to draw.

    Runs of one algorithm in one environment with the same settings make one line, their mean,
    and a band from the lowest to the highest, where all of them have data; each is also a thin
    line.  Raises TrainingError if something is not a run, if there is nothing to draw, or if
    `png` cannot be written.
    """
    if over is not None and over not in OVER:
        raise TrainingError(f"the x axis is {' or '.join(OVER)}, not {over!r}")
    groups, empty = _grouped(runs)
    if not groups:
        raise TrainingError(f"no episode has ended in {', '.join(map(str, empty))}")
    chosen = list(OVER) if over is None else [over]
    figure, panels = _figure(chosen)
    for axis, one in zip(panels, chosen, strict=True):
        for number, group in enumerate(groups):
            color, label = f"C{number}", f"{_label(group, groups)}, n = {len(group.runs)}"
            curves = [(_over(rows, one), _returns(rows)) for rows in group.runs]
            for x, y in curves:  # to its own end, which the band does not reach
                axis.plot(x, y, color=color, alpha=0.4, lw=0.8)
            joint = band(curves)
            if joint is None:
                axis.plot([], [], color=color, label=label)
            else:
                axis.plot(joint.x, joint.mean, color=color, label=label)
                axis.fill_between(joint.x, joint.low, joint.high, color=color, alpha=0.2, lw=0)
    panels[0].set_ylabel(f"return, mean of last {metrics.RETURN_WINDOW}")
    panels[0].legend()
    try:
        figure.savefig(png, dpi=120)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{png} cannot be written: {error}") from error
    return empty


def band(curves: Sequence[tuple[Line, Line]]) -> Band | None:
    """The mean and the extremes of curves (x, y), each with its x in order.

    They are on a common grid where all of them have data, None if that is nowhere.  A single
    curve keeps its own x.
    """
    if len(curves) == 1:
        x, y = curves[0]
        return Band(x, y, y, y)
    start, stop = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if start > stop:
        return None
    grid = np.linspace(start, stop, GRID_POINTS)
    each = np.stack([np.interp(grid, x, y) for x, y in curves])
    return Band(grid, each.mean(0), each.min(0), each.max(0))


def _grouped(runs: Sequence[str | Path]) -> tuple[list[Group], list[Path]]:
    """Groups runs by algorithm, environment and settings, in the order given, each once.

    Returns the runs without a finished episode separately.
    """
    groups: dict[str, Group] = {}
    empty = []
    for run in {Path(run).resolve(): Path(run) for run in runs}.values():
        algorithm, env, config = run_folder.read(run)
        file = RunFolder(run).metrics
        try:
            rows = _finished(file)
        except (OSError, ValueError, KeyError) as error:
            raise TrainingError(f"{file} cannot be read: {error!r}") from error
        name = f"{algorithm}, {env}"
        if rows:
            told = {key: value for key, value in config.items() if key not in CHANCE}
            kind = f"{name} {json.dumps(told, sort_keys=True)}"
            groups.setdefault(kind, Group(name, told, [])).runs.append(rows)
        else:
            empty.append(run)
    return list(groups.values()), empty


def _label(group: Group, groups: Sequence[Group]) -> str:
    """The name of a group, and the settings in which others of the same name differ."""
    others = [other.settings for other in groups if other.name == group.name]
    telling = [
        f"{key}={value}"
        for key, value in group.settings.items()
        if any(other.get(key) != value for other in others)
    ]
    return ", ".join([group.name, *telling])


def _finished(metrics_csv: Path) -> list[Row]:
    """The rows since the first finished episode."""
    return [row for row in metrics.read(metrics_csv) if not math.isnan(row["rollout/return_mean"])]


def _over(rows: list[Row], over: str) -> Line:
    _, number = OVER[over]
    return np.array([number(row) for row in rows])


def _returns(rows: list[Row]) -> Line:
    return np.array([row["rollout/return_mean"] for row in rows])


def _figure(chosen: list[str]) -> "tuple[Figure, list[Axes]]":
    """A panel for each of `OVER` that is chosen."""
    # Imported late: it takes a second, and actors import this module indirectly.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    # No pyplot: it would keep global state and ask for a display.
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0])
    for axis, over in zip(panels, chosen, strict=True):
        axis.set_xlabel(OVER[over][0])
        axis.grid(alpha=0.3)
    return figure, panels
