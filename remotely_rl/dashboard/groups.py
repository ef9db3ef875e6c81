"""Comparison of runs: those of a group share a line and a band.

By default a group has the runs that differ only in seed, limits and speed; with `by`, those that
have the same value of one setting, whatever their others are.
"""

from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

from remotely.arguments import did_you_mean
from remotely_rl.dashboard import filters, series
from remotely_rl.dashboard.runs import NoRun
from remotely_rl.errors import TrainingError
from remotely_rl.runs import aggregate, curve
from remotely_rl.runs.run_folder import RunConfig
from remotely_rl.runs.status import How

MAX_RUNS = 50  # in one comparison
RETURN = "rollout/return_mean"
INTERVAL_POINTS = 100  # of a band: each is bootstrapped, which takes a core 0.3 ms


class Source(Protocol):
    """A source of runs."""

    def config(self, name: str) -> RunConfig: ...

    def open(self, name: str, file: str) -> BinaryIO: ...


class Asked(NamedTuple):
    """The chart that is asked for.

    smooth     the weight of the past in an exponential mean of each run's line, as TensorBoard's
    interval   whether the band is the 95 % interval of the interquartile mean, for groups that have
               enough runs (`runs/aggregate.py`); otherwise it is the range around the mean
    by         the setting by which runs are grouped; None: by all settings
    """

    over: str = series.STEPS
    column: str = RETURN
    points: int = 400
    smooth: float = 0.0
    interval: bool = False
    by: str | None = None

    def check(self, names: Sequence[str]) -> None:
        """Raise ValueError for too many runs, another x axis, or too much smoothing."""
        if len(names) > MAX_RUNS:
            raise ValueError(
                f"{len(names)} runs are too many for one chart; choose {MAX_RUNS} at most"
            )
        if self.over not in series.OVER:
            raise ValueError(f"the x axis is {' or '.join(series.OVER)}, not {self.over!r}")
        if not 0 <= self.smooth < 1:
            raise ValueError(f"smooth is from 0 to below 1, not {self.smooth}")


class RunLine(NamedTuple):
    """A run in the chart."""

    run: str
    x: curve.Line
    y: curve.Line
    reached: bool = False  # its target: it counts with its last value where others go on


def compared(runs: Source, names: Sequence[str], asked: Asked) -> dict[str, Any]:
    """Return a line of a column over another for each group of runs, in the order given.

    groups     each has a line for each run, a band where all of them have data, and the aggregate
               of their values at the end of that
    settings   all in which these runs differ, with or without such a number: each run's value
    axes       those that make a sweep, which seed, limits and speed do not
    columns    all columns of these runs
    left_out   runs without such a number
    missing    that none of these runs has this column, unless none has any yet
    """
    asked.check(names)
    groups: dict[str, curve.RunGroup] = {}
    lines: dict[str, list[RunLine]] = {}
    configs: dict[str, RunConfig] = {}
    columns: dict[str, None] = {}
    left_out = []
    for name in dict.fromkeys(names):
        try:
            config = configs[name] = runs.config(name)
            line = _line(runs, name, asked, columns)
        except (NoRun, TrainingError):
            line = None
        if line is None:
            left_out.append(name)
            continue
        settings = curve.group_settings(config.as_asked)
        if asked.by is not None:
            settings = {asked.by: config.as_asked.get(asked.by)}
        group = curve.RunGroup(config.algorithm, config.env, settings, [])
        kind = repr((group.name, sorted(group.settings.items(), key=lambda pair: pair[0])))
        groups.setdefault(kind, group)
        reached = config.ended.get("how") == How.TARGET
        lines.setdefault(kind, []).append(line._replace(reached=reached))
    all_of = list(groups.values())
    last = _last(groups, lines, all_of)
    return {
        "groups": [
            {
                "label": curve.label_of(group, all_of),
                "method": curve.method_of(group, all_of),
                "env": group.env,
                "lines": [
                    {"run": one.run, "x": _short(one.x), "y": _short(one.y)} for one in lines[kind]
                ],
                "band": _band(lines[kind], asked.interval),
                "last": last[kind],
            }
            for kind, group in groups.items()
        ],
        "settings": _settings(configs),
        "axes": filters.differing({name: config.as_asked for name, config in configs.items()}),
        "columns": sorted(columns),
        "left_out": left_out,
        "missing": "" if not columns or asked.column in columns else _missing(asked, columns),
    }


def _missing(asked: Asked, columns: Iterable[str]) -> str:
    hint = did_you_mean(asked.column, columns)
    return f"none of these runs has {asked.column!r}" + (f"; {hint}" if hint else "")


def _line(runs: Source, name: str, asked: Asked, columns: dict[str, None]) -> RunLine | None:
    """Return a column of a run over another, where both have numbers; None if nowhere.

    Adds the run's columns to `columns`.
    """
    import numpy as np  # noqa: PLC0415 - the list of runs does without

    with runs.open(name, "metrics.csv") as file:
        wanted = [asked.over, asked.column]
        piece = series.read(file, wanted, asked.points, bucket=series.last)
    columns.update(dict.fromkeys(piece.columns))
    if asked.column not in piece.series or asked.over not in piece.series:
        return None
    pairs = zip(piece.series[asked.over], piece.series[asked.column], strict=True)
    finite = [(x, y) for x, y in pairs if x is not None and y is not None]
    if not finite:
        return None
    x, y = zip(*finite, strict=True)
    return RunLine(name, np.array(x), np.array(smoothed(y, asked.smooth)))


def smoothed(numbers: Sequence[float], weight: float) -> list[float]:
    """Return the exponential mean of the numbers so far, without a bias to the first of them."""
    mean, total, means = 0.0, 0.0, []
    for number in numbers:
        mean = weight * mean + (1 - weight) * number
        total = weight * total + (1 - weight)
        means.append(mean / total)
    return means


def _last(
    groups: dict[str, curve.RunGroup],
    lines: dict[str, list[RunLine]],
    all_of: Sequence[curve.RunGroup],
) -> dict[str, Any]:
    """Return the aggregate of each group where its shortest run ends; `at` is where, if not all do.

    Later, those that go on would count for all.
    """
    import numpy as np  # noqa: PLC0415 - as above

    found = {}
    for kind, group in groups.items():
        curves = _curves(lines[kind])
        at = min(float(x[-1]) for x, _ in curves)
        ends = [float(np.interp(at, x, y)) for x, y in curves]
        is_cut = any(x[-1] > at for x, _ in curves)
        method = curve.method_of(group, all_of)
        one = aggregate.summarize([aggregate.RunsOfMethod(method, group.env, ends)])[0]
        found[kind] = {
            "mean": one.mean,
            "runs": one.runs,
            "interval": one.interval,
            "spread": one.spread,
            "at": at if is_cut else None,
        }
    return found


def _curves(lines: Sequence[RunLine]) -> list[tuple[curve.Line, curve.Line]]:
    return curve.extend_reached([one.reached for one in lines], [(one.x, one.y) for one in lines])


def _settings(configs: dict[str, RunConfig]) -> dict[str, dict[str, Any]]:
    """Return all settings in which these runs differ, the algorithm too: of each, the value by
    run."""
    of_runs = {
        name: {"algorithm": config.algorithm, **config.as_asked} for name, config in configs.items()
    }
    return {
        name: {run: settings.get(name) for run, settings in of_runs.items()}
        for name in filters.differing(of_runs, apart_from=())
    }


def _band(lines: Sequence[RunLine], interval: bool) -> dict[str, Any] | None:
    """Return a mean and its band where all runs have data; None if nowhere, or for one run."""
    if len(lines) < 2:
        return None
    interval = interval and aggregate.has_interval([len(lines)])
    points = INTERVAL_POINTS if interval else curve.GRID_POINTS
    if (band := curve.band(_curves(lines), iqm=interval, points=points)) is None:
        return None
    parts = {part: _short(numbers) for part, numbers in band._asdict().items()}
    return {**parts, "is_interval": interval}


def _short(numbers: curve.Line) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]
