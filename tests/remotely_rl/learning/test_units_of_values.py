"""A model that goes on under another config keeps the units of its values, or is refused."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from remotely_rl import a3c, algorithms, n_step_q
from remotely_rl.environments import name_of
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.errors import TrainingError
from remotely_rl.learning.learner import (
    Learner,
    RewardScale,
    ValueScale,
    gae_batch,
    loaded_scale,
    saved_scale,
    scale_of,
)
from remotely_rl.learning.sharing import SharedLearner
from remotely_rl.runs import run_folder, training
from tests.remotely_rl import toys
from tests.remotely_rl.space_toys import FOR_BOXES

OUTPUTS = torch.tensor([-2.0, 0.0, 0.5, 30.0])  # of a model
CLIPS = list(itertools.product([0.0, 1.0], repeat=2))


def config_of(name: str, clip: float) -> Any:
    env = toys.Aim if name in FOR_BOXES else toys.Counting
    kind = algorithms.named(name).Config
    return kind(env=env, actors=1, envs_per_actor=2, reward_clip=clip, random_start=0)


def learnt(name: str, clip: float) -> tuple[Learner[Any], training.EnvironmentInfo]:
    """Return a learner that has counted values."""
    config = config_of(name, clip)
    info = training.probe(config)
    learner = training.make_learner(config, info=info)
    learner.count_values(torch.tensor([70.0, 90.0]), torch.tensor([20.0, -10.0]))
    return learner, info


def in_rewards(learner: Learner[Any]) -> Tensor:
    return learner.value_scale.denormalize(OUTPUTS)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(("before", "after"), CLIPS)
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_values_keep_their_units_with_another_reward_clip(
    name: str, before: float, after: float, tmp_path: Path
) -> None:
    first, info = learnt(name, before)
    path, config = tmp_path / "checkpoint.pt", config_of(name, after)
    run_folder.save_checkpoint(
        path, {"algorithm": name, "env": name_of(config.env), "learner": first.state()}
    )
    resumed = training.make_learner(config, info=info)
    resumed.load(run_folder.load_checkpoint(path)["learner"])
    begun = training.make_learner(config, info=info, kind=Learner, initial=path)
    for learner in (resumed, begun):
        torch.testing.assert_close(in_rewards(learner), in_rewards(first))
        assert torch.equal(toys.weights(learner.model), toys.weights(first.model))


@pytest.mark.parametrize("algorithm", [a3c, n_step_q])
@pytest.mark.parametrize(("before", "after"), CLIPS)
def test_shared_values_keep_their_units_with_another_reward_clip(
    algorithm: Any, before: float, after: float
) -> None:
    name = algorithm.__name__.rpartition(".")[2]
    first = SharedLearner(config_of(name, before), toys.network())
    if not before:
        first.scale.update(torch.tensor([20.0, -10.0]))
    second = SharedLearner(config_of(name, after), toys.network())
    second.load(first.state())
    want = first.scale.denormalize(OUTPUTS)
    torch.testing.assert_close(second.scale.denormalize(OUTPUTS), want)


@pytest.mark.parametrize(
    "scale", [ValueScale(5.0, 4.0, 9.0), RewardScale(4.0, 9.0), ValueScale(), RewardScale()]
)
def test_a_scale_is_restored_with_its_kind_and_its_numbers(scale: ValueScale) -> None:
    kind, clip = ("dqn", 0.0) if isinstance(scale, RewardScale) else ("a2c", float(not scale.count))
    found = loaded_scale(saved_scale(scale), config_of(kind, clip))
    assert type(found) is type(scale)
    assert found.moments == scale.moments


@pytest.mark.parametrize(
    ("saved", "scale"),
    [([5.0, 4.0, 9.0], ValueScale(5.0, 4.0, 9.0)), ([4.0, 9.0], RewardScale(4.0, 9.0))],
)
def test_the_scale_of_an_earlier_checkpoint_tells_its_kind_by_its_length(
    saved: list[float], scale: ValueScale
) -> None:
    found = loaded_scale(saved, config_of("a2c", 0.0))
    assert torch.equal(found.denormalize(OUTPUTS), scale.denormalize(OUTPUTS))


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("name", ["a2c", "dqn"])
@pytest.mark.parametrize("unused", [ValueScale(variance=0.0), RewardScale()])
def test_a_scale_that_has_counted_nothing_gives_no_units(
    unused: ValueScale, name: str, clip: float
) -> None:
    config = config_of(name, clip)
    assert loaded_scale(saved_scale(unused), config).moments == scale_of(config).moments


def test_values_with_a_mean_do_not_become_multiples_of_rewards() -> None:
    saved = saved_scale(ValueScale(5.0, 4.0, 9.0))
    with pytest.raises(TrainingError, match=r"a mean of 5, .* without that model, or give reward_"):
        loaded_scale(saved, config_of("dqn", 0.0))
    assert loaded_scale(saved, config_of("dqn", 1.0)).moments == (5.0, 4.0, 9.0)


def test_targets_are_in_the_units_of_the_values_that_bootstrap_them() -> None:
    config = dataclasses.replace(config_of("a2c", 1.0), gae_lambda=1.0)
    model = toys.network(1)
    learner = Learner(config, model, Discrete(2))
    trajectory = toys.actor(config, model).sample().trajectory
    batch = gae_batch(learner, trajectory, normalize_advantage=False)
    learner.value_scale = ValueScale(5.0, 4.0, 9.0)  # of another run; these values mean the same
    there = dataclasses.replace(
        trajectory, value=(trajectory.value - np.float32(5)) / np.float32(2)
    )
    found = gae_batch(learner, there, normalize_advantage=False)
    want = batch.transitions.value_target
    torch.testing.assert_close(2 * found.transitions.value_target + 5, want)
    torch.testing.assert_close(found.transitions.advantage, batch.transitions.advantage)
