"""Runs compared: those that differ only by chance make one line, with a band from low to high."""

from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol

from remotely_rl.dashboard import series
from remotely_rl.dashboard.runs import NoRun
from remotely_rl.errors import TrainingError
from remotely_rl.runs import curve
from remotely_rl.runs.run_folder import RunConfig

MOST = 50  # runs in one comparison


class Source(Protocol):
    """Where runs come from."""

    def config(self, name: str) -> RunConfig: ...

    def open(self, name: str, file: str) -> BinaryIO: ...


def compared(
    runs: Source, names: Sequence[str], over: str, column: str, points: int = 400
) -> dict[str, Any]:
    """Return a line of `column` over another for each group of runs, in the order given.

    A group is runs of one algorithm and environment with the same settings (`curve.PER_RUN` are
    those that may differ): a line for each, and a band where all of them have data.  `left_out` are
    runs that have no such number yet.  Raises ValueError for what cannot be compared.
    """
    if len(names) > MOST:
        raise ValueError(f"{len(names)} runs are too many for one picture; choose {MOST} at most")
    if over not in series.OVER:
        raise ValueError(f"the x axis is {' or '.join(series.OVER)}, not {over!r}")
    groups: dict[str, curve.Group] = {}
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
        group = curve.Group(f"{config.algorithm}, {config.env}", curve.group_settings(config.config), [])
        kind = repr((group.name, sorted(group.settings.items(), key=lambda pair: pair[0])))
        groups.setdefault(kind, group)
        lines.setdefault(kind, {})[name] = line
    labels = {kind: curve.label_of(group, list(groups.values())) for kind, group in groups.items()}
    return {
        "groups": [
            {"label": labels[kind], "lines": _lines(found), "band": _band(found)}
            for kind, found in lines.items()
        ],
        "left_out": left_out,
    }


def line_of(
    runs: Source, name: str, over: str, column: str, points: int
) -> tuple[curve.Line, curve.Line] | None:
    """Return a column of a run over another, where it has numbers; None if it has none."""
    import numpy as np  # noqa: PLC0415 - a list of runs needs none

    with runs.open(name, "metrics.csv") as file:
        piece = series.read(file, [over, column], points, bucket=series.last)
    if column not in piece.series or over not in piece.series:
        return None
    pairs = zip(piece.series[over], piece.series[column], strict=True)
    there = [(x, y) for x, y in pairs if x is not None and y is not None]
    if not there:
        return None
    x, y = zip(*there, strict=True)
    return np.array(x), np.array(y)


def _lines(found: dict[str, tuple[curve.Line, curve.Line]]) -> list[dict[str, Any]]:
    return [{"run": name, "x": _short(x), "y": _short(y)} for name, (x, y) in found.items()]


def _band(found: dict[str, tuple[curve.Line, curve.Line]]) -> dict[str, list[float]] | None:
    """Return the mean and the extremes where all runs have data; None for one run, or nowhere."""
    if len(found) < 2 or (band := curve.band(list(found.values()))) is None:
        return None
    return {part: _short(numbers) for part, numbers in band._asdict().items()}


def _short(numbers: curve.Line) -> list[float]:
    return [float(f"{number:.6g}") for number in numbers]
