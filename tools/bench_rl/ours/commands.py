"""Whole commands until a game is learnt: their seconds and steps.

pong_1            Pong to 18, with one actor fewer than cores; 1 is the seed
pong_actors_4     Pong to 18 with 4 actors and the command's defaults
breakout_400      Breakout to 400
first_step_15     seconds to the first step with 15 actors (tools/first_step.py)
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from remotely_rl.runs import metrics
from tools import first_step
from tools.bench.benchmark import ROOT
from tools.bench.stopwatch import report, report_missing
from tools.bench_rl.window import Asked, asked, cores

REACHED = "is reached"  # in the output of a command that ended at its target
END_S = 10.0  # for a run without success to end by itself

PONG = ["ppo", "--env", "ALE/Pong-v5", "--preset", "none", "--gamma", "0.98", "--target", "18"]
BREAKOUT = [
    "ppo",
    "--env",
    "ALE/Breakout-v5",
    "--gamma",
    "0.99",
    "--life-loss-is-terminal",
    "--entropy-coef-end",
    "0.005",
    "--anneal-steps",
    "20000000",
]
# The fastest of the tried settings: small rounds, which more games would enlarge.
FEW_GAMES = ["--envs-per-actor", "6", "--rollout-steps", "64", "--minibatches", "8"]


def pong(turn: Asked) -> None:
    actors = ["--actors", str(max(1, cores() - 1)), *FEW_GAMES]
    learn(turn, "pong", turn.size, [*PONG, "--seed", str(turn.size), *actors])


def pong_actors(turn: Asked) -> None:
    learn(turn, f"pong_actors_{turn.size}", 0, [*PONG, "--actors", str(turn.size)])


def breakout(turn: Asked) -> None:
    actors = ["--target", str(turn.size), "--actors", str(max(1, cores() - 1))]
    learn(turn, f"breakout_{turn.size}", 0, [*BREAKOUT, *actors])


def learn(turn: Asked, figure: str, repeat: int, words: list[str]) -> None:
    """Run the command; report its seconds and steps if it reached its target."""
    if turn.is_quick:
        words = [
            *words,
            "--total-steps",
            "64",
            "--rollout-steps",
            "4",
            "--probe-steps",
            "8",
            "--actors",
            "1",
            "--envs-per-actor",
            "2",
            "--minibatches",
            "1",
        ]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "remotely_rl.cli", "train", *words]
        minutes = f"{max(1.0, turn.limit_s - END_S) / 60:.3f}"
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--device", turn.device, "--minutes", minutes, "--run", str(run)],
            stdout=subprocess.PIPE,
            text=True,
        )
        took = time.monotonic() - began
        print(done.stdout, file=sys.stderr)
        done.check_returncode()
        last = metrics.read(run / "metrics.csv")[-1]
    mean, steps = last["rollout/return_mean"], last["time/env_steps"]
    if REACHED in done.stdout or turn.is_quick:
        report(repeat, **{f"{figure}_s": took, f"{figure}_steps": steps})
    else:
        why = f"a mean of {mean:.1f} after {took:.0f} s and {steps:,.0f} steps"
        report_missing(why, f"{figure}_s", f"{figure}_steps")


def first(turn: Asked) -> None:
    words = ["train", *PONG, "--total-steps", "1", "--device", turn.device]
    actors = 1 if turn.is_quick else turn.size
    for number in range(1 if turn.is_quick else 3):
        spent = first_step.run(ROOT, [*words, "--actors", str(actors)])
        print(spent, file=sys.stderr)
        report(number, **{f"{turn.what}_{turn.size}_s": spent[first_step.IN_ALL]})


PARTS: dict[str, Callable[[Asked], None]] = {
    "pong": pong,
    "pong_actors": pong_actors,
    "breakout": breakout,
    "first_step": first,
}


def main() -> None:
    turn = asked()
    PARTS[turn.what](turn)


if __name__ == "__main__":
    main()
