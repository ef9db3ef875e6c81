"""Seconds from the command to the first step of its environments, by phase.

python tools/first_step.py                              # PPO on Pong with 2 and 15 actors
python tools/first_step.py --actors 15 -n 3 --device cuda
python tools/first_step.py --beside ../before           # alternating with another checkout

A run is a whole command with --total-steps 1, which ends after its first round.  A phase begins
with the first call of a function (CALLS) and lasts until the next phase.  CPU seconds are of all
processes of the whole command.
"""

import argparse
import importlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300.0

# Phases that begin with a call: (module, function, name of the phase).
CALLS = (
    ("remotely_rl.runs.training", "probe", "embedded cluster"),
    ("remotely_rl.runs.training", "_attempt", "probe of the environment"),
    ("remotely_rl.runs.training", "make_learner", "model and learner"),
    ("remotely_rl.runs.training", "_session", "run folder"),
    ("remotely_rl.runs.sampling", "_actors", "actors"),
    ("remotely_rl.acting.rounds", "Rounds.begin", "first round"),
    ("remotely_rl.runs.metrics", "Tally.sampled", "end of the run"),
)
START, IMPORTS, LIBRARIES = "Python", "imports of the command", "imports of the algorithm"
PHASES = (START, IMPORTS, LIBRARIES, *(phase for *_, phase in CALLS))
IN_ALL, COMMAND, CPU = "to the first step", "whole command", "CPU, all processes"
BEFORE = PHASES[: PHASES.index("first round")]  # before the first step

Seconds = dict[str, float]


def trace(out: Path, began: float, words: list[str]) -> None:
    """Run the command; write the beginning of each phase to `out`, on the clock of `began`."""
    marks = {START: began, IMPORTS: time.monotonic()}

    def marking(called: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            marks.setdefault(phase, time.monotonic())
            return called(*args, **kwargs)

        return wrapped

    from remotely_rl import algorithms, cli  # noqa: PLC0415 - this import is timed

    def named(name: str) -> Any:
        """Import an algorithm, and with it all other modules."""
        marks.setdefault(LIBRARIES, time.monotonic())
        module = imports(name)
        for where, what, phase in CALLS:
            *owner, attribute = what.split(".")
            home: Any = importlib.import_module(where)
            for part in owner:
                home = getattr(home, part)
            if phase not in wrapped:
                wrapped.add(phase)
                setattr(home, attribute, marking(getattr(home, attribute), phase))
        return module

    imports, wrapped = algorithms.named, set[str]()
    algorithms.named = named
    try:
        sys.argv[1:] = words
        cli.main()
    finally:
        out.write_text(json.dumps(marks))


def run(tree: Path, words: list[str]) -> Seconds:
    """Run the command on the code of a tree; return the seconds of each phase and in total."""
    with tempfile.TemporaryDirectory(prefix="first-step-") as folder:
        out = Path(folder) / "marks"
        command = [sys.executable, __file__, "--trace", str(out), str(time.monotonic()), *words]
        own = {k: v for k, v in os.environ.items() if not k.startswith("REMOTELY_")}
        before = _cpu_s()
        done = subprocess.run(
            [*command, "--run", f"{folder}/run"],
            cwd=folder,
            env={**own, "PYTHONPATH": os.pathsep.join([str(tree), own.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        ended = time.monotonic()
        if done.returncode != 0:
            raise SystemExit(f"the command failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
        marks: Seconds = json.loads(out.read_text())
    begins = [*sorted(marks.items(), key=lambda mark: mark[1]), ("", ended)]
    spent = {phase: nxt - at for (phase, at), (_, nxt) in itertools.pairwise(begins)}
    return {
        **spent,
        IN_ALL: sum(spent.get(phase, 0.0) for phase in BEFORE),
        COMMAND: ended - marks[START],
        CPU: _cpu_s() - before,
    }


def _cpu_s() -> float:
    """Return the CPU time of all finished child processes."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def shown(found: dict[str, list[Seconds]]) -> str:
    """Return the table of phases, a column for each kind of run: medians and ranges."""
    names = [*PHASES, IN_ALL, COMMAND, CPU]
    lines = [["seconds", *found], ["---"] * (1 + len(found))]
    for name in names:
        cells = []
        for runs in found.values():
            values = [one.get(name, 0.0) for one in runs]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})")
        lines.append([name, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python tools/first_step.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", type=int, default=5, help="runs of each column")
    parser.add_argument("--actors", type=int, nargs="+", default=[2, 15], metavar="N")
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--beside", type=Path, metavar="TREE", help="also measure the tree TREE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to FILE")
    asked, more = parser.parse_known_args()  # the rest are the command's
    trees = {"": ROOT, **({"beside: ": asked.beside.resolve()} if asked.beside else {})}
    found: dict[str, list[Seconds]] = {}
    for _ in range(asked.n):
        for actors in asked.actors:
            for title, tree in trees.items():
                words = [
                    "train",
                    asked.algorithm,
                    "--env",
                    "ALE/Pong-v5",
                    "--total-steps",
                    "1",
                    "--device",
                    asked.device,
                    "--actors",
                    str(actors),
                    *more,
                ]
                found.setdefault(f"{title}{actors} actors", []).append(run(tree, words))
                if asked.json:
                    asked.json.write_text(json.dumps(found, indent=1))
    print(shown(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trace"]:
        trace(Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
    else:
        main()
