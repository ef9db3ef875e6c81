"""The unit of rewards does not matter: a power of two, which rounds nothing, changes no weight."""

import functools
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

from remotely_rl import algorithms
from remotely_rl.runs import run_folder
from tests.remotely_rl import toys
from tests.remotely_rl.space_toys import FOR_BOXES

# c51 and rainbow have a value_bound in units of rewards; GA3C's threads do not repeat a run.
NAMES = sorted(algorithms.ALGORITHMS.keys() - {"c51", "rainbow", "ga3c"})


def scaled(kind: type[Any], unit: float) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(kind(), lambda reward: float(reward) * unit)


@pytest.mark.usefixtures("local", "no_curve")
@pytest.mark.parametrize("name", NAMES)
def test_the_unit_of_rewards_changes_no_weight(name: str, tmp_path: Path) -> None:
    algorithm = algorithms.named(name)
    given: dict[str, Any] = {
        "actors": 1,
        "envs_per_actor": 4,
        "rollout_steps": 8,
        "random_start": 0,
        "total_steps": 300,
        "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
    }
    if hasattr(algorithm.Config, "replay_rows"):
        given |= {"learn_from": 32, "batch_size": 16, "replay_ratio": 4.0, "save_replay": False}
    kind = toys.Aim if name in FOR_BOXES else toys.Counting
    learnt = []
    for power in (0, 20, -20):
        config = algorithm.Config(env=functools.partial(scaled, kind, 2.0**power), **given)
        run = algorithm.train(config, run=tmp_path / str(power)).run
        model = run_folder.load_checkpoint(run / "checkpoint.pt")["learner"]["model"]
        learnt.append(torch.cat([part.flatten().double() for part in model.values()]))
    torch.testing.assert_close(learnt[1], learnt[0])
    torch.testing.assert_close(learnt[2], learnt[0])
