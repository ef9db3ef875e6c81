"""Comparison of runs: those that differ only in seed, limits and speed share a line and a band."""

from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol

from remotely_rl.dashboard import series
from remotely_rl.dashboard.runs import NoRun
from remotely_rl.errors import TrainingError
from remotely_rl.runs import curve
from remotely_rl.runs.run_folder import RunConfig

MAX_RUNS = 50  # in one comparison


class Source(Protocol):
    """A source of runs."""

    def config(self, name: str) -> RunConfig: ...

    def open(self, name: str, file: str) -> BinaryIO: ...


def compared(
    runs: Source, names: Sequence[str], over: str, column: str, points: int = 400
) -> dict[str, Any]:
    """Return a line of `column` over another for each group of runs, in the order given.

    A group has the runs of one algorithm and environment with the same settings, except those in
    `curve.PER_RUN`.  It has a line for each run, and a band where all of them have data.
    `left_out` are runs without such a number.  Raises ValueError for too many runs, or another
    x axis.
    """
    if len(names) > MAX_RUNS:
        raise ValueError(f"{len(names)} runs are too many for one chart; choose {MAX_RUNS} at most")
    if over not in series.OVER:
        raise ValueError(f"the x axis is {' or '.join(series.OVER)}, not {over!r}")
    groups: dict[str, curve.RunGroup] = {}
    lines: dict[str, dict[str, tuple[curve.Line, curve.Line]]] = {}
    left_out = []
    for name in dict.fromkeys(names):
        try:
            config = runs.config(name)
            line = line_of(runs, name, over, column, points)
        except (NoRun, TrainingError):
            line = None
        if line is None:
            left_out.append(name)
            continue
        settings = curve.group_settings(config.as_asked)
        group = curve.RunGroup(config.algorithm, config.env, settings, [])
        kind = repr((group.name, sorted(group.settings.items(), key=lambda pair: pair[0])))
        groups.setdefault(kind, group)
        lines.setdefault(kind, {})[name] = line
    all_of = list(groups.values())
    return {
        "groups": [
            {
                "label": curve.label_of(group, all_of),
                "method": curve.method_of(group, all_of),
                "env": group.env,
                "lines": _lines(lines[kind]),
                "band": _band(lines[kind]),
            }
            for kind, group in groups.items()
        ],
        "left_out": left_out,
    }


def line_of(
    runs: Source, name: str, over: str, column: str, points: int
) -> tuple[curve.Line, curve.Line] | None:
    """Return a column of a run over another, where both have numbers; None if nowhere."""
    import numpy as np  # noqa: PLC0415 - the list of runs does without

    with runs.open(name, "metrics.csv") as file:
        piece = series.read(file, [over, column], points, bucket=series.last)
    if column not in piece.series or over not in piece.series:
        return None
    pairs = zip(piece.series[over], piece.series[column], strict=True)
    finite = [(x, y) for x, y in pairs if x is not None and y is not None]
    if not finite:
        return None
    x, y = zip(*finite, strict=True)
    return np.array(x), np.array(y)


def _lines(found: dict[str, tuple[curve.Line, curve.Line]]) -> list[dict[str, Any]]:
    return [{"run": name, "x": _short(x), "y": _short(y)} for name, (x, y) in found.items()]


def _band(found: dict[str, tuple[curve.Line, curve.Line]]) -> dict[str, list[float]] | None:
    """Return the mean and the extremes where all runs have data; None if nowhere, or one run."""
    if len(found) < 2 or (band := curve.band(list(found.values()))) is None:
        return None
    return {part: _short(numbers) for part, numbers in band._asdict().items()}


def _short(numbers: curve.Line) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]
