"""The pace of a training: steps per second of the library's own loop, after a warm-up.

The run is stopped, as by Ctrl-C, when its metrics cover the window.  Steps are counted between two
rows of metrics, which are written at the end of an update.
"""

import itertools
import os
import signal
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from remotely_rl.runs import metrics
from remotely_rl.runs.metrics import Row
from tools.bench_rl.window import Window

ROWS_EVERY_S = 1.0
LOOK_EVERY_S = 0.5


class TooShort(Exception):
    """The training ended before it was measured."""


def measure(
    algorithm: ModuleType, config: Any, window: Window, model: Any = None, slices: int = 1
) -> list[float]:
    """Train until the window ends; return agent steps per second in each slice of it.

    The config should end the run some time later, in case it does not start to learn.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        ended = threading.Event()
        args = (run / "metrics.csv", window, ended)
        threading.Thread(target=_stop_when_measured, args=args, daemon=True).start()
        try:
            algorithm.train(config, model, run=run)
        finally:
            ended.set()
        return per_s(metrics.read(run / "metrics.csv"), window, slices)


def per_s(rows: Sequence[Row], window: Window, slices: int = 1) -> list[float]:
    """Return the pace in each slice of the time from the end of the warm-up to the last row.

    Slices have equal lengths, up to the distance of rows; slices that would end at the same row
    are merged.  Raises TooShort if the rows do not cover the window.
    """
    learnt = [row for row in rows if row["time/updates"] > 0]
    counted = [
        row for row in learnt if row["time/seconds"] >= learnt[0]["time/seconds"] + window.warm_up_s
    ]
    if not counted or counted[-1]["time/seconds"] < counted[0]["time/seconds"] + window.for_s:
        raise TooShort(f"{len(rows)} rows of metrics do not cover {window}")
    first, last = counted[0]["time/seconds"], counted[-1]["time/seconds"]
    ends = [first + (last - first) * (1 + number) / slices for number in range(slices)]
    # Rounding must not put an end beyond the last row.
    bounds = [0, *(bisect_left(counted, end - 1e-9, key=_seconds) for end in ends)]
    return [
        (counted[b]["time/env_steps"] - counted[a]["time/env_steps"])
        / (counted[b]["time/seconds"] - counted[a]["time/seconds"])
        for a, b in itertools.pairwise(bounds)
        if a != b
    ]


def _seconds(row: Row) -> float:
    return row["time/seconds"]


def _stop_when_measured(file: Path, window: Window, ended: threading.Event) -> None:
    while not ended.wait(LOOK_EVERY_S):
        try:
            per_s(metrics.read(file), window)
        except (TooShort, ValueError):  # ValueError: a row is being written
            continue
        os.kill(os.getpid(), signal.SIGINT)
        return
