"""Every template on Gymnasium's small problems, over several seeds: does it get there, and when.

    python -m tools.classic                          # all, five seeds each: hours
    python -m tools.classic --only ppo a2c --envs CartPole-v1 --seeds 1 2

A run ends when the mean of the last 30 training returns, by sampled actions, reaches what is
asked for.  Prints a line a run, and a table in Markdown at the end, for docs/results.md.
"""

import argparse
import contextlib
import importlib
import io
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

# What is to be reached, and for how many minutes it is tried.
TASKS = {
    "CartPole-v1": (475.0, 4.0),
    "Acrobot-v1": (-90.0, 6.0),
    "Pendulum-v1": (-200.0, 8.0),
    "LunarLander-v3": (200.0, 15.0),
}

# What differs from the defaults, which are Pong's: by problem, and by problem and algorithm.
COMMON: dict[str, Any] = {
    "actors": 2, "envs_per_actor": 8, "reward_clip": 0.0, "scale_values": True, "interval_s": 2.0,
    "learner_threads": 1, "random_start": 0,
}  # fmt: skip
PROBLEMS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "gamma": 0.98,
        "trace_decay": 0.9,
        "entropy": 0.0,
        "entropy_end": 0.0,
        "decay_steps": 200_000,
    },
    "Acrobot-v1": {"gamma": 0.99, "trace_decay": 0.95, "entropy": 0.01, "decay_steps": 300_000},
    "Pendulum-v1": {
        "gamma": 0.9,
        "trace_decay": 0.95,
        "entropy": 0.0,
        "entropy_end": 0.0,
        "decay_steps": 400_000,
    },
    "LunarLander-v3": {"gamma": 0.999, "trace_decay": 0.98, "entropy": 0.01},
}
SEVERAL_PASSES: dict[str, Any] = {
    "passes": 8, "minibatches": 4, "trajectory_steps": 64, "learning_rate": 1e-3, "kl_target": 0.0,
}  # fmt: skip
ONE_PASS: dict[str, Any] = {
    "trajectory_steps": 16, "learning_rate": 2e-3, "learning_rate_end": 5e-4, "standardise": True,
}  # fmt: skip
SHARED: dict[str, Any] = {
    "actors": 4, "envs_per_actor": 4, "scale_values": False, "optimizer": "adam",
}  # fmt: skip
ALGORITHMS: dict[str, dict[str, Any]] = {
    "a2c": {**ONE_PASS, "scale_rate": False},
    "ppo": SEVERAL_PASSES,
    "impala": SEVERAL_PASSES,
    "appo": SEVERAL_PASSES,
    "ga3c": {**ONE_PASS, "train_rows": 128},
    "a3c": {**ONE_PASS, **SHARED, "learning_rate": 2e-3, "standardise": False},
    "n_step_q": {
        **SHARED,
        "trajectory_steps": 8,
        "learning_rate": 1e-3,
        "learning_rate_end": 3e-4,
        "explore_steps": 20_000,
        "target_every": 1000,
        "max_grad_norm": 10.0,
    },
}
UNFIT = {("n_step_q", "Pendulum-v1")}  # its actions are numbered


def config_of(algorithm: str, env: str, seed: int) -> Any:
    """The config of one run."""
    module = importlib.import_module(f"remotely_rl.algorithms.{algorithm}")
    target, minutes = TASKS[env]
    fields = {**COMMON, **PROBLEMS[env], **ALGORITHMS[algorithm]}
    return module.Config(env=env, seed=seed, target=target, minutes=minutes, **fields)


def run(algorithm: str, env: str, seed: int) -> Any:
    """Trains once, without a word; returns the result."""
    module = importlib.import_module(f"remotely_rl.algorithms.{algorithm}")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return module.train(config_of(algorithm, env, seed), run=Path(folder) / "run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--envs", nargs="*", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    asked = parser.parse_args()
    rows = []
    for env in asked.envs:
        for algorithm in asked.only:
            if (algorithm, env) in UNFIT:
                continue
            minutes, reached, steps = [], 0, []
            for seed in asked.seeds:
                began = time.monotonic()
                result = run(algorithm, env, seed)
                took = (time.monotonic() - began) / 60
                got_there = "reached" in result.ended
                reached += got_there
                minutes.append(took)
                steps.append(result.env_steps)
                print(
                    f"{env} {algorithm} seed {seed}: {'reached' if got_there else 'MISSED'}"
                    f" {TASKS[env][0]:g} in {took:.2f} min, {result.env_steps:,} steps"
                    f" (best {result.best_return:.1f})",
                    flush=True,
                )
            rows.append(
                f"| {env} {TASKS[env][0]:g} | {algorithm} | {reached} of {len(asked.seeds)}"
                f" | {statistics.median(minutes):.2f} ({min(minutes):.2f}-{max(minutes):.2f})"
                f" | {statistics.median(steps):,.0f} |"
            )
    print(f"\n{os.cpu_count()} cores, seeds {asked.seeds}\n")
    print("| to reach | template | seeds | minutes: median (range) | steps |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
