"""Runs that are added to a file as they end: a measurement of hours goes on where it was."""

import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from remotely_rl.runs.training import Result
from tools.bench.benchmark import ROOT

FOLDER = ROOT / "runs"  # where files of runs are by default, and not in the repository

Run = TypeVar("Run")  # a NamedTuple


def read(file: Path, kind: Callable[..., Run]) -> list[Run]:
    """All runs so far, the first first."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [kind(**json.loads(line)) for line in lines]


def add(file: Path, run: Any) -> None:
    """Add one that has ended: a NamedTuple."""
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(run._asdict()) + "\n")


class Finish(NamedTuple):
    """How a training with a target ended: a line of the file."""

    env: str
    algorithm: str
    seed: int
    reached: bool
    minutes: float
    steps: int
    best: float


def finish(env: str, algorithm: str, seed: int, train: Callable[[Path], Result]) -> Finish:
    """Train once, without a word, in the folder that `train` is given.

    Raises KeyboardInterrupt if that was stopped: it did not fail, and is to be run again.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        result = train(Path(folder) / "run")
    if "stopped by" in result.ended:
        raise KeyboardInterrupt
    minutes = (time.monotonic() - began) / 60
    reached = "is reached" in result.ended
    return Finish(env, algorithm, seed, reached, minutes, result.env_steps, result.best_return)
