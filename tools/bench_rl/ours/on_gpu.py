"""Paces of each algorithm's own `train` with a GPU: 16 games per core, 84x84.

A few actors have many games each, whose threads share the cores.
"""

import dataclasses
from types import ModuleType
from typing import Any

from remotely_rl import dqn, impala, networks, ppo, rainbow
from tools.bench.stopwatch import report, report_missing
from tools.bench_rl import pace
from tools.bench_rl.window import Window, asked, cores

GAME = "ALE/Pong-v5"
SLICES = 5  # of the measured time
FULL, QUICK = Window(warm_up_s=5.0, for_s=15.0), Window(warm_up_s=0.5, for_s=1.0)

ACTORS = 4  # that step at a time
WIDTH = 4 * cores()
# As in the plain loop: rounds of 16,384 rows with 16 cores, three epochs, minibatches of 2,048.
ROUNDS: dict[str, Any] = {
    "actors": ACTORS,
    "rollout_steps": 64,
    "epochs": 3,
    "minibatches": max(1, cores() // 2),
}
REPLAYED: dict[str, Any] = {
    "actors": ACTORS,
    "replay_ratio": 8.0,
    "batch_size": 512,
    "overlap": True,
    "learn_from": 10_000,
    "replay_rows": 200_000,
    "save_replay": False,
}

PARTS: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "alternating": (
        ppo,
        {
            **ROUNDS,
            "sampling": "alternating",
            "overlap": True,
            "actors": 2 * ACTORS,
            "envs_per_actor": WIDTH // 2,
        },
    ),
    "central": (ppo, {**ROUNDS, "sampling": "central", "overlap": True}),
    "local": (
        ppo,
        {
            **ROUNDS,
            "sampling": "local",
            "overlap": True,
            "actors": cores(),
            "envs_per_actor": 16,
        },
    ),
    "impala": (
        impala,
        {
            "actors": ACTORS,
            "epochs": 1,
            "minibatches": 1,
            "target_kl": 0.0,
            "batch_trajectories": 4,
        },
    ),
    "dqn": (dqn, REPLAYED),
    "rainbow": (rainbow, {**REPLAYED, "noisy": False}),
}
MODELS = {"impala": networks.ResNet}
FEW: dict[str, Any] = {"actors": 2, "envs_per_actor": 4, "rollout_steps": 8}
SMALL: dict[str, dict[str, Any]] = {  # for --quick
    "impala": {"batch_trajectories": 1},
    "dqn": {"learn_from": 100, "batch_size": 16, "replay_rows": 1_000},
    "rainbow": {"learn_from": 100, "batch_size": 16, "replay_rows": 1_000},
}


def main() -> None:
    turn = asked()
    algorithm, given = PARTS[turn.what]
    known = {field.name for field in dataclasses.fields(algorithm.Config)}
    if "sampling" not in known and given.get("sampling") == "local":
        given.pop("sampling")  # older versions have only this one
    if unknown := given.keys() - known:
        report_missing(f"not in this version: {', '.join(unknown)}", turn.figure)
        return
    if turn.is_quick:
        given |= FEW | SMALL.get(turn.what, {})
    config = algorithm.Config(
        env=GAME,
        image_size=turn.size,
        device=turn.device,
        minutes=turn.limit_s / 60,
        log_interval_s=pace.ROWS_EVERY_S / (10 if turn.is_quick else 1),
        **{"envs_per_actor": WIDTH, **given},
    )
    window = QUICK if turn.is_quick else FULL
    for number, per_s in enumerate(
        pace.measure(algorithm, config, window, MODELS.get(turn.what), SLICES)
    ):
        report(number, **{turn.figure: per_s})


if __name__ == "__main__":
    main()
