"""Every algorithm on Gymnasium's small problems: how often and when it reaches the target.

    python -m tools.classic                          # all, five seeds each: hours
    python -m tools.classic --only ppo a2c --envs CartPole-v1 --seeds 1 2

A run ends when the mean of the last 30 training returns, with sampled actions, reaches the target.
It is added to runs/classic.jsonl, and runs in that file are not repeated.  A table of all is
printed at the end, and written to docs/lab/results.md with `--write`.
"""

import dataclasses
import importlib
import statistics
from typing import Any

from tools import runs, tables
from tools.bench.benchmark import ROOT
from tools.runs import Finish

# Targets, and the most minutes of a run.
TASKS = {
    "CartPole-v1": (475.0, 4.0),
    "Acrobot-v1": (-90.0, 6.0),
    "Pendulum-v1": (-200.0, 6.0),
    "LunarLander-v3": (200.0, 6.0),
}

# Differences from the defaults, which are for Pong: by problem, by algorithm and by both.
COMMON: dict[str, Any] = {
    "actors": 2,
    "envs_per_actor": 8,
    "log_interval_s": 2.0,
    "learner_threads": 1,
    "random_start": 0,
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "gamma": 0.98,
        "gae_lambda": 0.9,
        "entropy_coef": 0.0,
        "entropy_coef_end": 0.0,
        "anneal_steps": 200_000,
    },
    "Acrobot-v1": {
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "entropy_coef": 0.01,
        "anneal_steps": 300_000,
    },
    "Pendulum-v1": {
        "gamma": 0.9,
        "gae_lambda": 0.95,
        # Without it the deviation, which is 0.37 at first, shrinks too early: a seed of IMPALA was
        # at -540 after 670,000 steps.
        "entropy_coef": 0.01,
        "entropy_coef_end": 0.01,
        "anneal_steps": 400_000,
    },
    "LunarLander-v3": {"gamma": 0.999, "gae_lambda": 0.98, "entropy_coef": 0.01},
}
SEVERAL_PASSES: dict[str, Any] = {
    "epochs": 8,
    "minibatches": 4,
    "rollout_steps": 64,
    "learning_rate": 1e-3,
    "target_kl": 0.0,
}
ONE_PASS: dict[str, Any] = {
    "rollout_steps": 16,
    "learning_rate": 2e-3,
    "learning_rate_end": 5e-4,
    "normalize_advantage": True,
}
SHARED: dict[str, Any] = {"actors": 4, "envs_per_actor": 4, "optimizer": "adam"}
# Small problems need few steps, and each step is worth the work of an update.  Exploration must
# last until values differ: with a ratio of 4 and 8,000 steps a seed of CartPole had made 240
# updates when epsilon was 0.01, and then always fell to one side after 127 steps.
FROM_REPLAY: dict[str, Any] = {
    "rollout_steps": 4,
    "replay_rows": 100_000,
    "learn_from": 1000,
    "replay_ratio": 16.0,
    "n_step": 3,
    "explore_steps": 20_000,
    "target_update_interval": 1_000,
    "learning_rate": 1e-3,
    "learning_rate_end": 1e-4,
    "anneal_steps": 60_000,
    "save_replay": False,
}
SMALL_NETWORKS: dict[str, Any] = {
    "actors": 1,
    "envs_per_actor": 1,
    "gamma": 0.99,
    "hidden": "64,64",
    "batch_size": 128,
    "replay_ratio": 128.0,
    "learning_rate": 1e-3,
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "a2c": {**ONE_PASS, "rate_rule": "none"},
    "ppo": SEVERAL_PASSES,
    "impala": SEVERAL_PASSES,
    "appo": SEVERAL_PASSES,
    "ga3c": SEVERAL_PASSES,
    "a3c": {**ONE_PASS, **SHARED, "learning_rate": 2e-3, "normalize_advantage": False},
    "n_step_q": {
        **SHARED,
        "rollout_steps": 8,
        "learning_rate": 1e-3,
        "learning_rate_end": 3e-4,
        "explore_steps": 20_000,
        "target_every": 1000,
        "max_grad_norm": 10.0,
    },
    "dqn": FROM_REPLAY,
    "qr_dqn": {**FROM_REPLAY, "quantiles": 10},
    "sac": SMALL_NETWORKS,
    # With 0.99 a seed of Pendulum was at -235 after 10,000 steps; with this it was at -144.
    "td3": {**SMALL_NETWORKS, "gamma": 0.98},
}
# Algorithms that use a batch once need longer pieces for late returns: with pieces of 16 steps A2C
# learnt to hover with one seed of two on LunarLander, and had -400 to -700 on Pendulum.  All
# episodes of Pendulum have 200 steps and stay in step unless their starts differ; and without an
# entropy bonus its deviation shrinks too early.
LONG_PIECES: dict[str, Any] = {
    "rollout_steps": 64,
    "learning_rate": 3e-3,
    "learning_rate_end": 1e-3,
    "anneal_steps": 2_000_000,
}
APART: dict[str, Any] = {
    **LONG_PIECES,
    "learning_rate_end": 5e-4,
    "anneal_steps": 1_000_000,
    "random_start": 200,
    "entropy_coef": 0.02,
    "entropy_coef_end": 0.02,
}
SHORTER: dict[str, Any] = {
    "learning_rate": 2e-3,
    "learning_rate_end": 7e-4,
    "normalize_advantage": True,
}
LATE = {"LunarLander-v3": LONG_PIECES, "Pendulum-v1": APART}
BOTH = {
    (algorithm, env): {**differing, **more}
    for env, differing in LATE.items()
    for algorithm, more in {"a2c": {}, "a3c": SHORTER}.items()
}
# With uniform draws and a gamma of 0.98, a seed with 498 after 42,000 steps had 242 after 58,000,
# perhaps because falls are rare in the replay by then.  Changing only gamma did not help.
BOTH["dqn", "CartPole-v1"] = {"gamma": 0.99, "prioritized_alpha": 0.5}
# Acrobot has no reward until its first success, and then few examples of it.
BOTH["dqn", "Acrobot-v1"] = {
    "explore_steps": 8_000,
    "learning_rate_end": 2e-4,
    "anneal_steps": 100_000,
}
# With 16 environments and an epsilon of 0.01 after 20,000 steps, a seed hovered until the time
# limit, at -14 after 126,000 steps.  Both were changed; exploration is the likely reason.
BOTH["dqn", "LunarLander-v3"] = {
    "envs_per_actor": 4,
    "gamma": 0.99,
    "replay_ratio": 32.0,
    "explore_steps": 100_000,
    "learning_rate_end": 2e-4,
    "anneal_steps": 150_000,
}
BOTH |= {("qr_dqn", env): more for (name, env), more in BOTH.items() if name == "dqn"}
# Pendulum has continuous actions, all others discrete ones.
UNFIT = {
    *((name, "Pendulum-v1") for name in ("n_step_q", "dqn", "qr_dqn")),
    *((name, env) for name in ("sac", "td3") for env in TASKS if env != "Pendulum-v1"),
}


def config_of(algorithm: str, env: str, seed: int) -> Any:
    """Return the config of one run."""
    module = importlib.import_module(f"remotely_rl.algorithms.{algorithm}")
    target, minutes = TASKS[env]
    by_both = BOTH.get((algorithm, env), {})
    known = {field.name for field in dataclasses.fields(module.Config)}
    # The minutes are a limit that most runs do not need.
    fields = {"anneal_steps": module.Config.horizon, **COMMON, **PROBLEMS[env]}
    fields |= {**ALGORITHMS[algorithm], **by_both}
    fields = {name: value for name, value in fields.items() if name in known}
    return module.Config(env=env, seed=seed, target=target, minutes=minutes, **fields)


def run(algorithm: str, env: str, seed: int) -> Finish | None:
    """Train once."""
    if (algorithm, env) in UNFIT:
        return None
    module = importlib.import_module(f"remotely_rl.algorithms.{algorithm}")
    config = config_of(algorithm, env, seed)
    return runs.finish(env, algorithm, seed, lambda folder: module.train(config, run=folder))


def table(finishes: list[Finish]) -> str:
    """Return medians of steps and minutes over the seeds, and successes, in Markdown."""
    cells = {}
    for algorithm in ALGORITHMS:
        for env, (target, _) in TASKS.items():
            of_both = [one for one in finishes if (one.env, one.algorithm) == (env, algorithm)]
            if of_both:
                cells[f"`{algorithm}`", f"{env}, {target:g}"] = (
                    f"{statistics.median(one.steps for one in of_both) / 1000:,.0f}k, "
                    f"{statistics.median(one.minutes for one in of_both):.2f} min, "
                    f"{sum(one.reached for one in of_both)} of {len(of_both)}"
                )
    return tables.pivoted(cells)


if __name__ == "__main__":
    page, seeds = ROOT / "docs" / "lab" / "results.md", (1, 2, 3, 4, 5)
    runs.command("classic", __doc__, page, [*ALGORITHMS], [*TASKS], seeds, run, table)
