"""The pace of a training while its page is open, relative to that while it is not.

One run trains all the time, and its page is open in every other turn of TURN_S.  Other changes of
its pace, for example by longer episodes, affect neighbouring turns equally.
"""

import csv
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tools.bench.benchmark import ROOT

TURN_S = 8.0
PAIRS = 8  # of turns
SETTLE_S = 8.0  # before the first
EVERY_S = 5.0  # between the page's questions, as in static/runs.js
ROW_S = 0.5
METRICS = "metrics.csv"

Look = Callable[[], None]


def ratios(run: Path, look: Look) -> list[float]:
    """Train in a new folder, and `look` as its page does; return a ratio for each two turns."""
    command = [sys.executable, "-m", "remotely_rl.cli", "train", "ppo", "--env", "CartPole-v1"]
    minutes = (SETTLE_S + TURN_S * (2 * PAIRS + 4)) / 60
    options = {"--run": run, "--minutes": minutes, "--log-interval-s": ROW_S, "--seed": 1}
    options["--total-steps"] = 0  # no limit
    words = [str(word) for pair in options.items() for word in pair]
    training = subprocess.Popen([*command, *words], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while not (rows := rows_of(run)):
            if training.poll() is not None:
                raise SystemExit("the training ended before its first row")
            time.sleep(ROW_S)
        begun = (run / METRICS).stat().st_mtime - rows[-1][0]  # the zero of its clock
        time.sleep(SETTLE_S)
        turns = [_turn(n % 2 == n // 2 % 2, look) for n in range(2 * PAIRS)]
        time.sleep(2 * ROW_S)
        if training.poll() is not None:
            raise SystemExit("the training ended before the last turn")
    finally:
        training.terminate()
        training.wait(60)
    rows = rows_of(run)
    found = []
    for one, other in zip(turns[::2], turns[1::2], strict=True):
        speeds = {looked: speed(rows, a - begun, b - begun) for looked, a, b in (one, other)}
        found.append(speeds[True] / speeds[False])
    return found


def _turn(looked: bool, look: Look) -> tuple[bool, float, float]:
    """Look for a turn if `looked`; return that and the turn's begin and end."""
    began, ended = time.time(), threading.Event()

    def ask() -> None:
        while looked and not ended.is_set():
            look()
            ended.wait(EVERY_S)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(TURN_S)
    ended.set()
    thread.join()
    return looked, began, time.time()


def rows_of(run: Path) -> list[tuple[float, float]]:
    """Return (seconds, steps) of each row of a run's metrics."""
    path = run / METRICS
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            (float(r["time/seconds"]), float(r["time/env_steps"])) for r in csv.DictReader(file)
        ]


def speed(rows: list[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Return the steps per second between two times of a run."""
    times, steps = zip(*rows, strict=True)
    first, last = np.interp([begin_s, end_s], times, steps)
    return float(last - first) / (end_s - begin_s)
