"""The learner, without a cluster: steps, rates, and what a checkpoint keeps."""

import copy
import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remotely_rl import a2c, algorithms, appo, impala, networks, ppo
from remotely_rl.config import Common
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.batch import Batch, Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.learning.learner import Learner, clipped_share, gae_batch, to_device
from tests.remotely_rl import toys

CONFIG = a2c.Config(
    env=toys.Guess, envs_per_actor=4, rollout_steps=6, random_start=0, anneal_steps=1000,
    rate_rule="none",
)  # fmt: skip
ACTIONS = Discrete(2)


def learner(config: Common = CONFIG, model: nn.Module | None = None) -> Learner[Any]:
    return Learner(config, model or toys.network(), ACTIONS)


def remembering() -> nn.Module:
    torch.manual_seed(0)
    return networks.RecurrentMLP((2,), 2, units=5)


def played(config: Common = CONFIG, model: nn.Module | None = None, **changes: Any) -> Trajectory:
    return toys.actor(config, model or toys.network(), **changes).sample().trajectory


def update_impala(learns: Learner[Any], trajectory: Trajectory, progress: float) -> Any:
    return impala.update(learns, impala.ReplayBuffer(learns.config), trajectory, progress)


@pytest.mark.parametrize("make", [lambda: toys.network(2), remembering], ids=["rows", "memory"])
@pytest.mark.parametrize("normalize_advantage", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize(
    ("module", "update"), [(ppo, ppo.update), (impala, update_impala), (appo, appo.update)]
)
def test_what_an_autoreset_row_holds_never_changes_an_update(
    make: Any, normalize_advantage: bool, module: Any, update: Any
) -> None:
    config = module.Config(
        env=toys.Guess, envs_per_actor=4, rollout_steps=7, minibatches=2,
        normalize_advantage=normalize_advantage, normalize_values=normalize_advantage,
    )  # fmt: skip
    trajectory = played(config, make())
    reset = ~trajectory.valid
    assert reset.any()
    spoilt = dataclasses.replace(
        trajectory,
        action=np.where(reset, 1 - trajectory.action, trajectory.action),
        reward=np.where(reset, 1e6, trajectory.reward).astype(np.float32),
        log_prob=np.where(reset, -9.0, trajectory.log_prob).astype(np.float32),
    )
    results = []
    for fed in (trajectory, spoilt):
        learns = learner(config, make())
        torch.manual_seed(1)
        update(learns, fed, 0)
        results.append(toys.weights(learns.model))
    assert torch.equal(*results)
    assert not torch.equal(results[0], toys.weights(make()))


def test_the_share_that_is_clipped_is_of_the_rewards_that_are_experience() -> None:
    reward = np.array([[1.0, -10.0], [20.0, 0.5], [-1.0, 9.0]], np.float32)
    valid = np.array([[True, True], [True, True], [True, False]])
    assert clipped_share(reward, valid, 1.0) == pytest.approx(2 / 5)
    assert clipped_share(reward, valid, 0.0) == 0.0
    assert clipped_share(reward, np.zeros_like(valid), 1.0) == 0.0


def test_an_update_says_which_part_of_the_rewards_was_clipped() -> None:
    # Episodes of three steps give 10, 20 and 30; the row after is no experience.
    config = dataclasses.replace(CONFIG, env=toys.Counting, reward_clip=10.0)
    learns = learner(config, toys.network(1))
    metrics = a2c.update(learns, played(config, toys.network(1), rollout_steps=8), 0)
    assert metrics["train/rewards_clipped"] == pytest.approx(2 / 3)
    unclipped = learner(dataclasses.replace(config, reward_clip=0.0), toys.network(1))
    assert "train/rewards_clipped" not in a2c.update(unclipped, played(config, toys.network(1)), 0)


@torch.no_grad()
def test_the_newest_parameters_say_what_they_would_have_done() -> None:
    trajectory = played()
    learns = learner(model=toys.network(seed=9))
    said, value = learns.unroll(to_device(learns, trajectory))
    log_prob = ACTIONS.log_prob(said[:-1], torch.from_numpy(trajectory.action))
    policy, want = learns.model(torch.from_numpy(trajectory.obs).flatten(0, 1))
    torch.testing.assert_close(value, want.view(7, 4))
    taken = policy.log_softmax(-1).view(7, 4, 2)[:-1]
    taken = taken.gather(-1, torch.from_numpy(trajectory.action)[..., None])[..., 0]
    torch.testing.assert_close(log_prob, taken)


# --- updates --------------------------------------------------------------------------------------


def test_an_update_is_one_step_of_adam_on_the_losses_written_out() -> None:
    config = dataclasses.replace(CONFIG, max_grad_norm=0.1, learning_rate=0.01)
    learns = learner(config)
    networks.update_normalizers(learns.model, torch.randn(50, 2))
    learns.version = 5  # not the first
    trajectory = played()
    batch = gae_batch(learns, trajectory, normalize_advantage=False)

    by_hand = copy.deepcopy(learns.model)
    policy, value = by_hand(batch.obs)
    probability = policy.softmax(-1)
    chosen = probability.gather(-1, batch.transitions.action[:, None])[:, 0]
    total = (
        -(chosen.log() * batch.transitions.advantage).mean()
        + config.value_coef * 0.5 * ((value - batch.transitions.value_target) ** 2).mean()
        - config.entropy_coef * -(probability * probability.log()).sum(-1).mean()
    )
    gradients = torch.autograd.grad(total, list(by_hand.parameters()))
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert norm > 0.1
    for parameter, gradient in zip(by_hand.parameters(), gradients, strict=True):
        clipped = gradient * 0.1 / norm
        with torch.no_grad():  # Adam's first step: m / (1 - b1) is g, v / (1 - b2) is g^2
            parameter.sub_(0.01 * clipped / (clipped.abs() + 1e-5))

    policy, value, rows = learns.forward(batch)
    losses = a2c.compute_losses(policy, value, rows, config, config.entropy_coef, ACTIONS)
    metrics = learns.end_update([learns.step(losses)], batch)
    for ours, theirs in zip(learns.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert learns.version == 6


def test_observations_are_counted_in_once_and_never_between_acting_and_learning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learns = learner()
    counts: list[float] = []
    compute_losses = a2c.compute_losses

    def spy(*given: Any) -> Any:
        counts.append(learns.model.state_dict()["normalizer.count"].item())
        return compute_losses(*given)

    monkeypatch.setattr(a2c, "compute_losses", spy)
    sizes = []
    for _ in range(3):
        trajectory = played(rollout_steps=8)
        sizes.append(len(range(0, int(trajectory.valid.sum()), 7)))
        a2c.update(learns, trajectory, 0)
    one, two, three = itertools.accumulate(sizes)
    assert counts == [0, one, two]
    assert learns.model.state_dict()["normalizer.count"].item() == three


def test_a_step_by_gradients_of_a_copy_is_the_same_step() -> None:
    trajectory = played()
    here, there = learner(), learner()
    for _ in range(3):
        metrics = a2c.update(here, trajectory, 0)
        copied = copy.deepcopy(there.model)
        batch = gae_batch(there, trajectory, normalize_advantage=False)
        policy, value, rows = there.forward(batch, copied)
        losses = a2c.compute_losses(policy, value, rows, CONFIG, CONFIG.entropy_coef, there.actions)
        gradients = torch.autograd.grad(losses.total, list(copied.parameters()))
        assert there.end_update([there.step_with(gradients, losses)], batch) == metrics
        assert torch.equal(toys.weights(here.model), toys.weights(there.model))
    assert here.version == there.version == 3


def test_what_actors_are_sent_is_a_copy_and_says_its_version() -> None:
    learns = learner()
    sent = learns.parameters()
    assert sent.version == 0
    before = sent.state["policy.weight"].copy()
    a2c.update(learns, played(), 0)
    assert (sent.state["policy.weight"] == before).all()
    assert learns.parameters().version == 1


def test_a_reward_that_is_no_number_loses_the_learner_and_the_update_is_named() -> None:
    learns = learner()
    a2c.update(learns, played(), 0)
    with pytest.raises(LearnerLost, match=r"infinite at update 2: .* look for NaN in rewards or"):
        a2c.update(learns, played(env=toys.poisoned), 0)


def test_a_learner_that_is_restored_goes_on_to_the_same_bit() -> None:
    config = ppo.Config(env=toys.Guess, envs_per_actor=4, rollout_steps=6, normalize_values=True)
    learns = learner(config)
    ppo.update(learns, played(config), 0)
    again = learner(config, toys.network(seed=3))
    again.load(learns.state())
    for one in (learns, again):
        torch.manual_seed(3)
        ppo.update(one, played(config), 0.5)
    assert torch.equal(toys.weights(learns.model), toys.weights(again.model))
    assert again.version == learns.version == 2
    assert again.learning_rate.value == learns.learning_rate.value
    assert again.value_scale.moments == learns.value_scale.moments


def test_a_learner_that_is_restored_shares_nothing_with_what_it_was_restored_from() -> None:
    learns = learner()
    a2c.update(learns, played(), 0)
    kept = copy.deepcopy(learns.state())
    again = learner()
    given = copy.deepcopy(kept)
    again.load(given)
    a2c.update(again, played(), 0)
    of_first, of_given, of_now = (
        state["optimizer"]["state"][0]["exp_avg"] for state in (kept, given, again.state())
    )
    assert torch.equal(of_given, of_first)
    assert not torch.equal(of_now, of_first)


# --- random numbers -------------------------------------------------------------------------------


def test_a_learner_draws_from_a_stream_of_its_own_which_goes_on_after_a_resume() -> None:
    config = ppo.Config(env=toys.Guess, minibatches=4)
    one, other = learner(config), learner(config)
    rows = torch.arange(100.0)
    batch = Batch(rows[:, None], Transitions(rows, rows, rows, rows, rows))
    torch.manual_seed(1)
    first = [part.obs for part in batch.minibatches(4, one.generator)]
    state = copy.deepcopy(one.state())
    second = [part.obs for part in batch.minibatches(4, one.generator)]
    torch.manual_seed(2)
    again = [part.obs for part in batch.minibatches(4, other.generator)]
    assert all(map(torch.equal, first, again))
    other.load(state)
    again = [part.obs for part in batch.minibatches(4, other.generator)]
    assert all(map(torch.equal, second, again))


def test_the_random_numbers_of_a_gpu_are_saved_with_its_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = {"state": torch.tensor([7], dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: stream["state"])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: stream.update(state=state)
    )
    learns = learner()
    assert learns.state()["cuda_random"] is None
    learns.device = torch.device("cuda")
    state = learns.state()
    stream["state"] = torch.tensor([8], dtype=torch.uint8)
    learns.load(state)
    assert stream["state"].item() == 7


# --- rates and units ------------------------------------------------------------------------------


def test_a_steered_rate_follows_no_schedule_and_holds_from_the_next_update_on() -> None:
    learns = learner(ppo.Config(target_kl=1000.0))  # nothing moves so far
    first = ppo.update(learns, played(), 0.5)
    second = ppo.update(learns, played(), 0.5)
    assert first["train/learning_rate"] == 1e-3
    assert second["train/learning_rate"] == pytest.approx(1e-3 * 1.5)
    assert learns.optimizer.param_groups[0]["lr"] == second["train/learning_rate"]


def test_a_steered_rate_is_resumed_unless_another_is_given() -> None:
    learns = learner(ppo.Config(target_kl=1000.0))
    ppo.update(learns, played(), 0)
    for given, goes_on_at in ((1e-3, 1.5e-3), (1e-5, 1e-5)):
        again = learner(ppo.Config(target_kl=1000.0, learning_rate=given))
        again.load(learns.state())
        assert again.learning_rate.value == pytest.approx(goes_on_at)


@pytest.mark.parametrize("name", ["a2c", "a3c", "n_step_q"])
def test_where_an_update_is_one_step_there_is_no_rate_to_steer(name: str) -> None:
    with pytest.raises(TrainingError, match="there is no field 'target_kl'"):
        algorithms.named(name).Config(target_kl=0.01)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("ppo", {"epochs": 1, "minibatches": 1}),
        ("impala", {"epochs": 1, "minibatches": 1}),
        ("ga3c", {"epochs": 1, "minibatches": 1}),
    ],
)
def test_no_rate_is_steered_where_an_update_is_one_step(name: str, given: dict[str, int]) -> None:
    with pytest.raises(TrainingError, match="target_kl must be 0"):
        algorithms.named(name).Config(target_kl=0.01, **given)
