"""Runs in a file, to which each is added at its end: a long measurement can be continued.

A study is a table of runs for each algorithm, environment and seed; `command` is its command line.
"""

import contextlib
import io
import itertools
import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from remotely_rl.runs.training import Result
from tools import command_line
from tools.bench.benchmark import ROOT
from tools.bench.page import replaced

FOLDER = ROOT / "runs"  # not in the repository

Run = TypeVar("Run")  # a NamedTuple


def read(file: Path, kind: Callable[..., Run]) -> list[Run]:
    """Return all runs in a file, which may not exist."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [kind(**json.loads(line)) for line in lines]


def add(file: Path, *runs: Any) -> None:
    """Add finished runs, which are NamedTuples."""
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as lines:
        lines.writelines(json.dumps(run._asdict()) + "\n" for run in runs)


class Finish(NamedTuple):
    """The end of a training with a target: a line of the file."""

    env: str
    algorithm: str
    seed: int
    reached: bool
    minutes: float
    steps: int
    best: float


def finish(env: str, algorithm: str, seed: int, train: Callable[[Path], Result]) -> Finish:
    """Train once, without output, in the folder that `train` is given.

    Raises KeyboardInterrupt if it was stopped, so that it can be repeated.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        result = train(Path(folder) / "run")
    if "stopped by" in result.ended:
        raise KeyboardInterrupt
    minutes = (time.monotonic() - began) / 60
    reached = "is reached" in result.ended
    return Finish(env, algorithm, seed, reached, minutes, result.env_steps, result.best_return)


def command(
    name: str,
    doc: str | None,
    page: Path,
    algorithms: Sequence[str],
    envs: Sequence[str],
    seeds: Sequence[int],
    run: Callable[[str, str, int], Finish | None],
    table: Callable[[list[Finish]], str],
) -> None:
    """Make the selected runs that are not in the file, and print the table of all.

    `run` gets an algorithm, an environment and a seed; it returns None for a pair that does not
    fit.  `--write` puts the table between the marks of this name in `page`.
    """
    parser = command_line.parser(f"python -m tools.{name}", doc)
    parser.add_argument("--only", nargs="*", default=list(algorithms), choices=list(algorithms))
    parser.add_argument("--envs", nargs="*", default=list(envs), choices=list(envs))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(seeds))
    parser.add_argument("--write", action="store_true", help=f"fill docs/{page.name}")
    asked = parser.parse_args()
    file = FOLDER / f"{name}.jsonl"
    known = {(one.env, one.algorithm, one.seed) for one in read(file, Finish)}
    for seed, env, algorithm in itertools.product(asked.seeds, asked.envs, asked.only):
        if (env, algorithm, seed) not in known and (finish := run(algorithm, env, seed)):
            add(file, finish)
            print(finish, flush=True)
    found = table(read(file, Finish))
    print(found)
    if asked.write:
        begins = re.search(rf"<!-- {name} begins? -->", text := page.read_text())
        assert begins is not None
        page.write_text(replaced(text, begins[0], begins[0].replace("begin", "end"), found))
