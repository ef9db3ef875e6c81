"""From a trajectory to a batch: what is left out, clipped and normalized."""

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remotely_rl import a2c, a3c, appo, ga3c, impala, ppo
from remotely_rl.config import Common
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.experience.batch import Batch
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions.returns import Targets
from remotely_rl.learning.learner import (
    Learner,
    gae_batch,
    make_batch,
    normalizes_values,
    to_device,
)
from tests.remotely_rl import toys

CONFIG = a2c.Config(
    env=toys.Guess, envs_per_actor=4, rollout_steps=6, random_start=0, anneal_steps=1000,
    rate_rule="none",
)  # fmt: skip
ACTIONS = Discrete(2)


def learner(config: Common = CONFIG, model: nn.Module | None = None) -> Learner[Any]:
    return Learner(config, model or toys.network(), ACTIONS)


def played(config: Common = CONFIG, model: nn.Module | None = None, **changes: Any) -> Trajectory:
    return toys.actor(config, model or toys.network(), **changes).sample().trajectory


def test_rows_that_are_no_experience_are_left_out_of_a_batch() -> None:
    learns = learner(model=toys.network(1))
    trajectory = played(model=learns.model, env=toys.Counting)
    batch = gae_batch(learns, trajectory, normalize_advantage=False)
    assert len(batch.obs) == trajectory.valid.sum() < trajectory.valid.size
    assert 3.0 not in batch.obs  # the observation that a Counting episode ends with
    assert all(len(part) == len(batch.obs) for part in batch.transitions)


def test_advantages_are_normalized_by_what_is_experience_alone() -> None:
    learns = learner(model=toys.network(1))
    trajectory = played(model=learns.model, env=toys.Counting)
    batch = gae_batch(learns, trajectory, normalize_advantage=True)
    torch.testing.assert_close(
        batch.transitions.advantage.mean(), torch.tensor(0.0), atol=1e-6, rtol=0
    )
    deviation = batch.transitions.advantage.std(correction=0)
    torch.testing.assert_close(deviation, torch.tensor(1.0), atol=1e-4, rtol=0)


def test_rewards_are_clipped_in_the_learner_alone() -> None:
    trajectory = played(model=toys.network(1), env=toys.Counting)
    assert trajectory.reward.max() == 30.0
    by_one = dataclasses.replace(CONFIG, reward_clip=1.0)
    unclipped = dataclasses.replace(CONFIG, reward_clip=0.0)
    clipped = to_device(learner(by_one, toys.network(1)), trajectory)
    raw = to_device(learner(unclipped, toys.network(1)), trajectory)
    assert clipped.reward.max() == 1.0
    assert raw.reward.max() == 30.0


@pytest.mark.parametrize(("env", "bound"), [("ALE/Pong-v5", 1.0), ("CartPole-v1", 0.0)])
def test_by_default_rewards_are_clipped_in_atari_alone_and_values_normalized_where_they_are_not(
    env: str, bound: float
) -> None:
    config = dataclasses.replace(CONFIG, env=env)
    assert config.clips_rewards_at == bound
    assert normalizes_values(config) == (bound == 0.0)
    given = dataclasses.replace(config, reward_clip=2.0, normalize_values=True)
    assert (given.clips_rewards_at, normalizes_values(given)) == (2.0, True)


def test_only_a_terminated_step_has_no_discount() -> None:
    for truncates in (False, True):
        env = lambda truncates=truncates: toys.Counting(2, truncates)
        trajectory = played(model=toys.network(1), env=env)
        batch = to_device(learner(model=toys.network(1)), trajectory)
        gamma = CONFIG.gamma
        want = [gamma, gamma if truncates else 0.0, gamma] * 2
        assert batch.discount[:, 0].tolist() == pytest.approx(want)


def test_values_are_taken_as_the_actor_found_them_unless_they_are_normalized() -> None:
    trajectory, plain = played(), learner(dataclasses.replace(CONFIG, normalize_values=False))
    assert torch.equal(to_device(plain, trajectory).value, torch.from_numpy(trajectory.value))


def test_normalized_values_are_learnt_in_their_own_units_and_used_in_those_of_rewards() -> None:
    config = dataclasses.replace(CONFIG, normalize_values=True, reward_clip=0.0)
    learns = learner(config, toys.network(1))
    trajectory = played(config, toys.network(1), env=toys.Counting)
    batch = gae_batch(learns, trajectory, normalize_advantage=False)
    target = batch.transitions.value_target
    torch.testing.assert_close(target.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(target.std(correction=0), torch.tensor(1.0), atol=1e-2, rtol=0)
    mean, deviation = learns.value_scale.mean, learns.value_scale.std
    assert mean > 10  # rewards are 10, 20, 30
    rollout = to_device(learns, trajectory)
    want = torch.from_numpy(trajectory.value) * deviation + mean
    torch.testing.assert_close(rollout.value, want)
    with torch.no_grad():
        _, value = learns.unroll(rollout)
    torch.testing.assert_close(learns.value_scale.denormalize(value), want)


def update(template: Any, learns: Learner[Any], trajectory: Trajectory) -> dict[str, float]:
    """An algorithm's update at the beginning of its schedule; returns its metrics."""
    if template is impala:
        return impala.update(learns, impala.ReplayBuffer(learns.config), trajectory, 0)
    if template is not ga3c:
        updated: dict[str, float] = template.update(learns, trajectory, 0)
        return updated
    metrics: dict[str, float] = {}
    lock, record = threading.Lock(), lambda found, staleness: metrics.update(found)
    ga3c.update(learns, toys.network(), lock, trajectory, 0, record)
    return metrics


@pytest.mark.parametrize("template", [a2c, ppo, impala, appo, ga3c])
def test_what_is_learnt_does_not_depend_on_the_unit_of_rewards(template: Any) -> None:
    config = template.Config(env=toys.Guess, envs_per_actor=4, random_start=0, rollout_steps=8)
    updated = []
    for unit in (1.0, 1e-9, 1e6):
        learns = learner(config)
        for _ in range(2):
            trajectory = played(config, learns.model)
            scaled = dataclasses.replace(trajectory, reward=trajectory.reward * np.float32(unit))
            update(template, learns, scaled)
        updated.append(toys.weights(learns.model))
    for other in updated[1:]:
        torch.testing.assert_close(other, updated[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("is_asked_for", [False, True])
@pytest.mark.parametrize(
    ("template", "fields"),
    [
        (a2c, {}),
        (a3c, {}),
        (ppo, {"minibatches": 2, "epochs": 1}),
        (impala, {"minibatches": 2, "epochs": 1}),
        (appo, {"minibatches": 2, "epochs": 1}),
        (appo, {"minibatches": 2, "epochs": 1, "v_trace": False}),
        (ga3c, {"minibatches": 2, "epochs": 1}),
    ],
)
def test_every_algorithm_normalizes_advantages_as_its_config_says(
    template: Any, fields: dict[str, Any], is_asked_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    advantages: list[torch.Tensor] = []
    forward = Learner.forward

    def spy(learns: Learner[Any], batch: Batch, *rest: Any) -> Any:
        advantages.append(batch.valid_transitions.advantage)
        return forward(learns, batch, *rest)

    monkeypatch.setattr(Learner, "forward", spy)
    config = template.Config(
        env=toys.Guess, envs_per_actor=4, random_start=0, normalize_advantage=is_asked_for, **fields
    )
    if template is a3c:
        works = a3c.make_work(config, toys.network(), 5)
        works.gradient(works.flat.vector, None)
    else:
        update(template, learner(config), played(config))

    deviation, mean = torch.std_mean(torch.cat(advantages), correction=0)
    moments = [deviation.item(), mean.item()]
    assert (moments == pytest.approx([1, 0], abs=1e-4)) == is_asked_for


@pytest.mark.parametrize(
    ("template", "fields"),
    [(ppo, {}), (impala, {}), (appo, {}), (appo, {"v_trace": False}), (ga3c, {})],
)
def test_the_rate_is_steered_by_the_update_alone_however_old_its_experience_is(
    template: Any, fields: dict[str, Any]
) -> None:
    config = template.Config(
        env=toys.Guess, envs_per_actor=4, learning_rate=0.0, target_kl=0.01, **fields
    )
    learns = learner(config, toys.network(seed=9))
    learns.version = 1  # what acted is of version 0, and another network
    nn.init.normal_(learns.model.get_parameter("policy.weight"))
    trajectory = played(config)
    rows = gae_batch(learns, trajectory, normalize_advantage=False).transitions
    assert (rows.start_log_prob - rows.old_log_prob).abs().max() > 0.1

    assert update(template, learns, trajectory)["train/approx_kl"] == pytest.approx(0, abs=1e-6)


def test_explained_variance_is_what_is_left_of_that_of_the_targets_once_values_are_known() -> None:
    learns, rollout = learner(), to_device(learner(), played())
    target = torch.zeros_like(rollout.reward)
    target[rollout.valid] = torch.arange(float(rollout.valid.sum()))
    rollout = rollout._replace(value=torch.zeros_like(rollout.value))
    shares = []
    for known in (target + 5, target / 2):  # all but a constant, and half of each
        rollout.value[:-1] = known
        make_batch(learns, rollout, Targets(target, target))
        shares.append(learns.explained_variance)
        learns.explained_variance = None
    assert shares == pytest.approx([1, 0.75])
