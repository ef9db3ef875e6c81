"""Two learners on two cores beside one learner that has both: steps a second of A2C and PPO.

    python -m tools.bench_rl.learners --rounds 3 --seconds 20
    python -m tools.bench_rl.learners --algorithm ppo --env CartPole-v1

Both have as many environments: one learner with an actor for each core, or a learner with one
actor on each core.  They take turns, so that what else the machine does falls on both alike, and
the ratio is that of each round.  A turn's first seconds, in which processes start, do not count.
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from remotely_rl.runs import metrics
from tools.bench_rl.window import cores

START_S = 4.0  # after the first update, which do not count


def steps_per_second(algorithm: str, env: str, learners: int, seconds: float, actors: int) -> float:
    """The pace of a run, over so many seconds once it learns."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [
            sys.executable, "-m", "remotely_rl.cli", "train", algorithm, "--env", env,
            "--preset", "none", "--device", "cpu",
            "--learners", str(learners), "--actors", str(actors // learners),
            "--log-interval-s", "0.5", "--checkpoint-interval-s", "1e6", "--run", str(run),
        ]  # fmt: skip
        training = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            rows = counted(run)
            while rows[-1]["time/seconds"] - rows[0]["time/seconds"] < seconds:
                if training.poll() is not None:
                    raise SystemExit(f"the run has ended: {' '.join(command)}")
                time.sleep(0.5)
                rows = counted(run)
        finally:
            training.send_signal(signal.SIGINT)
            training.wait()
    first, last = rows[0], rows[-1]
    took_s = last["time/seconds"] - first["time/seconds"]
    return (last["time/env_steps"] - first["time/env_steps"]) / took_s


def counted(run: Path) -> list[metrics.Row]:
    """The rows that count, so far; one of nothing if there are none."""
    learnt = [row for row in metrics.read(run / "metrics.csv") if row["time/updates"] > 0]
    if learnt:
        learnt = [
            row for row in learnt if row["time/seconds"] >= learnt[0]["time/seconds"] + START_S
        ]
    return learnt or [{"time/seconds": 0.0, "time/env_steps": 0.0}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--algorithm", default="a2c")
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    ratios = []
    for number in range(asked.rounds):
        turns = (1, 2) if number % 2 == 0 else (2, 1)
        pace = {
            learners: steps_per_second(
                asked.algorithm, asked.env, learners, asked.seconds, max(2, cores())
            )
            for learners in turns
        }
        ratios.append(pace[2] / pace[1])
        print(
            f"round {number + 1}: one learner {pace[1]:,.0f} steps/s, two {pace[2]:,.0f};"
            f" ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"{asked.algorithm} on {asked.env}: median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
