"""Learning curves: mean return over time and over steps."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl.errors import TrainingError
from remotely_rl.runs import aggregate, metrics, picture, run_folder
from remotely_rl.runs.aggregate import Aggregate
from remotely_rl.runs.metrics import Row, Tally
from remotely_rl.runs.picture import Curve
from remotely_rl.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = NDArray[np.float64]

# The x axes of a curve: the column, and the size of each unit.
OVER: dict[str, tuple[str, dict[str, float]]] = {
    "minutes": ("time/seconds", {"hours": 3600, "minutes": 60, "seconds": 1}),
    "steps": ("time/env_steps", {"million steps": 1e6, "thousand steps": 1e3, "steps": 1}),
}
MIN_UNITS = 2.0  # the longest run has at least this many of the unit chosen

GRID_POINTS = 400
# If the longest line is this many times as long as the shortest, the axis is logarithmic:
# otherwise the shortest would be a few pixels wide.
LOG_SCALE_RATIO = 20.0


# Settings in which the runs of one line may differ: randomness, limits and speed.
PER_RUN = {
    "env",
    "seed",
    "total_steps",
    "minutes",
    "target",
    "log_interval_s",
    "metrics",
    "checkpoint_interval_s",
    "device",
    "learner_threads",
    "compile",
}


class DrawnRun(NamedTuple):
    """The rows of a run from the first finished episode, and whether it reached its target."""

    rows: list[Row]
    reached: bool


class RunGroup(NamedTuple):
    """Runs that differ only in settings of PER_RUN."""

    algorithm: str
    env: str
    settings: dict[str, Any]
    runs: list[DrawnRun]

    @property
    def name(self) -> str:
        return f"{self.algorithm}, {self.env}"


class Band(NamedTuple):
    """A mean on a grid, and its extremes or its interval if there is one, each [points]."""

    x: Line
    mean: Line
    low: Line
    high: Line


def draw(metrics_csv: Path, png: Path, title: str) -> bool:
    """Draw curve.png from metrics.csv.  Returns False if no episode has ended."""
    rows = _finished(metrics_csv)
    if not rows:
        return False
    figure, panels = _figure(list(OVER), [rows[-1:]])
    for panel in panels:
        x = panel.places(rows)
        for column, alpha in (("rollout/return_interval", 0.25), ("rollout/return_mean", 1.0)):
            y = [row[column] for row in rows]
            picture.draw(panel.axis, Curve(x, y, colour="tab:blue", opacity=alpha))
    panels[0].axis.set_ylabel(
        f"return, mean of last {metrics.RETURN_WINDOW} (pale: of an interval)"
    )
    figure.suptitle(title)
    figure.savefig(png, dpi=120)
    return True


def compare(
    runs: Sequence[str | Path], png: str | Path, over: str | None = None, *, iqm: bool = False
) -> list[Path]:
    """Draw several runs, over "minutes", "steps" or both; return those without an episode.

    Runs of one algorithm and environment with the same settings form one line, their mean, and a
    band from the lowest to the highest, where all of them have data; each is also a thin line.
    With `iqm` the line is their interquartile mean, and the band its 95 % interval, if there are
    enough (`aggregate.py`).  A run that reached its target has a mark there, and continues with its
    last value.  Raises TrainingError if a path is not a run, if there is nothing to draw, or if
    `png` cannot be written.
    """
    if over is not None and over not in OVER:
        raise TrainingError(f"the x axis is {' or '.join(OVER)}, not {over!r}")
    groups, empty = _grouped(runs)
    if not groups:
        raise TrainingError(f"no episode has ended in {', '.join(map(str, empty))}")
    ends = [[run.rows[-1] for run in group.runs] for group in groups]
    figure, panels = _figure(list(OVER) if over is None else [over], ends)
    for panel in panels:
        for number, group in enumerate(groups):
            color, label = f"C{number}", f"{label_of(group, groups)}, n = {len(group.runs)}"
            curves = [(panel.places(run.rows), _returns(run.rows)) for run in group.runs]
            for run, (x, y) in zip(group.runs, curves, strict=True):
                if len(curves) > 1:  # the band ends at the end of the shortest
                    picture.draw(panel.axis, Curve(x, y, colour=color, is_thin=True))
                if run.reached:
                    panel.axis.plot(x[-1:], y[-1:], "*", color=color, ms=9)
            if iqm and not aggregate.has_interval([len(curves)]):
                label = f"{label}: too few for an interval"
            joint = band(extend_reached([run.reached for run in group.runs], curves), iqm=iqm)
            if joint is None:
                panel.axis.plot([], [], color=color, label=label)
            else:
                x, mean, low, high = joint
                picture.draw(panel.axis, Curve(x, mean, low, high, color, label=label))
    first = panels[0].axis
    first.set_ylabel(f"return, mean of last {metrics.RETURN_WINDOW}")
    if any(run.reached for group in groups for run in group.runs):
        first.plot([], [], "*", color="gray", ms=9, label="a run ended at its target")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower left", fontsize="small")
    try:
        figure.savefig(png, dpi=120)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{png} cannot be written: {error}") from error
    return empty


def extend_reached(
    reached: Sequence[bool], curves: Sequence[tuple[Line, Line]]
) -> list[tuple[Line, Line]]:
    """Return the curves; those that reached their target continue with their last value."""
    last = max(x[-1] for x, _ in curves)
    return [
        (np.append(x, last), np.append(y, y[-1])) if ended and x[-1] < last else (x, y)
        for ended, (x, y) in zip(reached, curves, strict=True)
    ]


def figures(runs: Sequence[str | Path]) -> list[Aggregate]:
    """Return the aggregates of the last mean returns of these runs."""
    groups, _ = _grouped(runs)
    return aggregate.summarize(
        aggregate.RunsOfMethod(
            method_of(group, groups),
            group.env,
            [run.rows[-1]["rollout/return_mean"] for run in group.runs],
        )
        for group in groups
    )


def band(
    curves: Sequence[tuple[Line, Line]], *, iqm: bool = False, points: int = GRID_POINTS
) -> Band | None:
    """Return the mean and the extremes of curves (x, y), each with increasing x.

    With `iqm` they are the interquartile mean and its interval; the latter is empty if there are
    too few.  The grid covers the range where all curves have data; returns None if it is empty.  A
    single curve keeps its own x.
    """
    if len(curves) == 1:
        x, y = curves[0]
        return Band(x, y, np.empty(0), np.empty(0)) if iqm else Band(x, y, y, y)
    start, stop = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if start > stop:
        return None
    grid = np.linspace(start, stop, points)
    each = np.stack([np.interp(grid, x, y) for x, y in curves])
    if iqm:
        ends = aggregate.interval([each])
        low, high = (np.empty(0), np.empty(0)) if ends is None else ends
        return Band(grid, aggregate.interquartile_mean(each), low, high)
    return Band(grid, each.mean(0), each.min(0), each.max(0))


def _grouped(runs: Sequence[str | Path]) -> tuple[list[RunGroup], list[Path]]:
    """Group runs by algorithm, environment and settings, in the order given, each once.

    Returns the groups, and the runs without a finished episode.
    """
    groups: dict[str, RunGroup] = {}
    empty = []
    single = [run for path in runs for run in run_folder.runs_of(Path(path))]
    for run in {run.resolve(): run for run in single}.values():
        ran = run_folder.read(run)
        file = RunFolder(run).metrics
        try:
            rows = _finished(file)
        except (OSError, ValueError, KeyError) as error:
            raise TrainingError(f"{file} cannot be read: {error!r}") from error
        if rows:
            group = RunGroup(ran.algorithm, ran.env, group_settings(ran.as_asked), [])
            key = f"{group.name} {json.dumps(group.settings, sort_keys=True)}"
            member = DrawnRun(rows, _reached_target(run, ran.config.get("target")))
            groups.setdefault(key, group).runs.append(member)
        else:
            empty.append(run)
    return list(groups.values()), empty


def group_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are equal within a group of runs."""
    return {key: value for key, value in config.items() if key not in PER_RUN}


def label_of(group: RunGroup, groups: Sequence[RunGroup]) -> str:
    """Return the name of a group, and the settings in which groups of this name differ."""
    return ", ".join([group.name, *_differing(group, groups)])


def method_of(group: RunGroup, groups: Sequence[RunGroup]) -> str:
    """Return the algorithm of a group, and the same settings: its label without an environment."""
    return ", ".join([group.algorithm, *_differing(group, groups)])


def _differing(group: RunGroup, groups: Sequence[RunGroup]) -> list[str]:
    others = [other.settings for other in groups if other.name == group.name]
    return [
        f"{key}={f'{value:.3g}' if isinstance(value, float) else value}"
        for key, value in group.settings.items()
        if any(other.get(key) != value for other in others)
    ]


def _finished(metrics_csv: Path) -> list[Row]:
    """Return the rows from the first finished episode."""
    return [row for row in metrics.read(metrics_csv) if not math.isnan(row["rollout/return_mean"])]


def _reached_target(run: Path, target: float | None) -> bool:
    """Whether a run reached its target, by its checkpoint: metrics.csv lacks the mean over 30."""
    if target is None:
        return False
    try:
        tally = Tally.of(run_folder.load_checkpoint(RunFolder(run).checkpoint))
    except TrainingError:  # the run was moved without its checkpoint
        return False
    return tally.short_return_mean() >= target


def _returns(rows: list[Row]) -> Line:
    return np.array([row["rollout/return_mean"] for row in rows])


class CurvePanel:
    """A plot over one of the axes OVER."""

    def __init__(self, axis: "Axes", over: str, ends: Sequence[Sequence[Row]]):
        """`ends` are, for each line, the last rows of its runs."""
        from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - see picture.py

        self.axis = axis
        self._column, units = OVER[over]
        last = [max(row[self._column] for row in rows) for rows in ends]
        name, self._unit = next(
            (unit for unit in units.items() if max(last) >= MIN_UNITS * unit[1]),
            list(units.items())[-1],
        )
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
        if max(last) > LOG_SCALE_RATIO * min(last) > 0:
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        else:
            axis.xaxis.set_major_locator(MaxNLocator(6))

    def places(self, rows: list[Row]) -> Line:
        """Return the x coordinates of rows."""
        return np.array([row[self._column] / self._unit for row in rows])


def _figure(chosen: list[str], ends: Sequence[Sequence[Row]]) -> "tuple[Figure, list[CurvePanel]]":
    """Return a figure with a panel for each chosen axis."""
    figure, axes = picture.panels(len(chosen), 8, 4.5 + 0.2 * len(ends))
    return figure, [CurvePanel(axis, over, ends) for axis, over in zip(axes, chosen, strict=True)]
