"""The learner, without a cluster: batches, steps, learning rates, value scales, checkpoints."""

import copy
import dataclasses
import itertools
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remotely_rl import a2c, a3c, algorithms, appo, ga3c, impala, networks, ppo
from remotely_rl.config import Common
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.batch import Batch, Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions.returns import Targets
from remotely_rl.learning.learner import (
    Learner,
    LearningRate,
    RewardScale,
    ValueScale,
    annealed,
    clipped_share,
    gae_batch,
    make_batch,
    normalizes_values,
    to_device,
)
from tests.remotely_rl import toys

CONFIG = a2c.Config(
    env=toys.Guess,
    envs_per_actor=4,
    rollout_steps=6,
    random_start=0,
    anneal_steps=1000,
    rate_rule="none",
)
ACTIONS = Discrete(2)


def make_learner(config: Common = CONFIG, model: nn.Module | None = None) -> Learner[Any]:
    return Learner(config, model or toys.network(), ACTIONS)


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return networks.RecurrentMLP((2,), 2, units=5)


def played(config: Common = CONFIG, model: nn.Module | None = None, **changes: Any) -> Trajectory:
    return toys.actor(config, model or toys.network(), **changes).sample().trajectory


@pytest.mark.parametrize("make", [lambda: toys.network(2), recurrent], ids=["rows", "memory"])
@pytest.mark.parametrize("normalize_advantage", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize(
    ("module", "update"), [(ppo, ppo.update), (impala, impala.update), (appo, appo.update)]
)
def test_the_contents_of_reset_rows_never_change_an_update(
    make: Any, normalize_advantage: bool, module: Any, update: Any
) -> None:
    config = module.Config(
        env=toys.Guess,
        envs_per_actor=4,
        rollout_steps=7,
        minibatches=2,
        normalize_advantage=normalize_advantage,
        normalize_values=normalize_advantage,
    )
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
        learner = make_learner(config, make())
        torch.manual_seed(1)
        update(learner, fed, 0)
        results.append(toys.weights(learner.model))
    assert torch.equal(*results)
    assert not torch.equal(results[0], toys.weights(make()))


def test_clipped_share_is_the_fraction_of_rewards_beyond_the_bound() -> None:
    reward = np.array([1.0, -10.0, 20.0, 0.5, -1.0], np.float32)
    assert clipped_share(reward, 1.0) == pytest.approx(2 / 5)
    assert clipped_share(reward, 0.0) == 0.0
    assert clipped_share(reward[:0], 1.0) == 0.0


def test_the_fraction_of_clipped_rewards_is_a_metric() -> None:
    # Episodes of three steps have rewards of 10, 20 and 30; the row after them is a reset.
    config = dataclasses.replace(CONFIG, env=toys.Counting, reward_clip=10.0)
    learner = make_learner(config, toys.network(1))
    metrics = a2c.update(learner, played(config, toys.network(1), rollout_steps=8), 0)
    assert metrics["train/rewards_clipped"] == pytest.approx(2 / 3)
    unclipped = make_learner(dataclasses.replace(config, reward_clip=0.0), toys.network(1))
    assert "train/rewards_clipped" not in a2c.update(unclipped, played(config, toys.network(1)), 0)


@torch.no_grad()
def test_unroll_returns_the_current_policy_and_values() -> None:
    trajectory = played()
    learner = make_learner(model=toys.network(seed=9))
    rollout = to_device(learner, trajectory)
    unrolled, value = learner.unroll(rollout)
    log_prob = ACTIONS.log_prob(unrolled[:-1], torch.from_numpy(trajectory.action))
    policy, want = learner.model(rollout.obs.flatten(0, 1))
    torch.testing.assert_close(value, want.view(7, 4))
    taken = policy.log_softmax(-1).view(7, 4, 2)[:-1]
    taken = taken.gather(-1, torch.from_numpy(trajectory.action)[..., None])[..., 0]
    torch.testing.assert_close(log_prob, taken)


# --- updates --------------------------------------------------------------------------------------


def test_an_update_is_one_adam_step_on_the_explicit_losses() -> None:
    config = dataclasses.replace(CONFIG, max_grad_norm=0.1, learning_rate=0.01)
    learner = make_learner(config)
    networks.update_normalizers(learner.model, torch.randn(50, 2))
    learner.version = 5  # not the first
    trajectory = played()
    batch = gae_batch(learner, trajectory, normalize_advantage=False)

    by_hand = copy.deepcopy(learner.model)
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

    policy, value, rows = learner.forward(batch)
    losses = a2c.compute_losses(policy, value, rows, config, config.entropy_coef, ACTIONS)
    metrics = learner.end_update([learner.step(losses)], batch)
    for ours, theirs in zip(learner.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert learner.version == 6


def test_observations_enter_the_statistics_once_and_only_after_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = make_learner()
    counts: list[float] = []
    compute_losses = a2c.compute_losses

    def spy(*given: Any) -> Any:
        counts.append(learner.model.state_dict()["normalizer.count"].item())
        return compute_losses(*given)

    monkeypatch.setattr(a2c, "compute_losses", spy)
    sizes = []
    for _ in range(3):
        trajectory = played(rollout_steps=8)
        sizes.append(len(range(0, int(trajectory.valid.sum()), 7)))
        a2c.update(learner, trajectory, 0)
    one, two, three = itertools.accumulate(sizes)
    assert counts == [0, one, two]
    assert learner.model.state_dict()["normalizer.count"].item() == three


def test_step_with_the_gradients_of_a_copy_is_the_same_step() -> None:
    trajectory = played()
    here, there = make_learner(), make_learner()
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


def test_parameters_for_actors_are_a_copy_with_a_version() -> None:
    learner = make_learner()
    sent = learner.parameters()
    assert sent.version == 0
    before = sent.state["policy.weight"].copy()
    a2c.update(learner, played(), 0)
    assert (sent.state["policy.weight"] == before).all()
    assert learner.parameters().version == 1


def test_a_nan_reward_raises_learner_lost_with_the_update() -> None:
    learner = make_learner()
    a2c.update(learner, played(), 0)
    with pytest.raises(LearnerLost, match=r"infinite at update 2: .* look for NaN in rewards or"):
        a2c.update(learner, played(env=toys.poisoned), 0)


def test_a_restored_learner_continues_bit_for_bit() -> None:
    config = ppo.Config(env=toys.Guess, envs_per_actor=4, rollout_steps=6, normalize_values=True)
    learner = make_learner(config)
    ppo.update(learner, played(config), 0)
    again = make_learner(config, toys.network(seed=3))
    again.load(learner.state())
    for one in (learner, again):
        torch.manual_seed(3)
        ppo.update(one, played(config), 0.5)
    assert torch.equal(toys.weights(learner.model), toys.weights(again.model))
    assert again.version == learner.version == 2
    assert again.learning_rate.value == learner.learning_rate.value
    assert again.value_scale.moments == learner.value_scale.moments


def test_a_restored_learner_shares_no_tensors_with_the_state() -> None:
    learner = make_learner()
    a2c.update(learner, played(), 0)
    kept = copy.deepcopy(learner.state())
    again = make_learner()
    given = copy.deepcopy(kept)
    again.load(given)
    a2c.update(again, played(), 0)
    of_first, of_given, of_now = (
        state["optimizer"]["state"][0]["exp_avg"] for state in (kept, given, again.state())
    )
    assert torch.equal(of_given, of_first)
    assert not torch.equal(of_now, of_first)


# --- random numbers -------------------------------------------------------------------------------


def test_a_learner_has_its_own_random_stream_which_is_resumed() -> None:
    config = ppo.Config(env=toys.Guess, minibatches=4)
    one, other = make_learner(config), make_learner(config)
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


def test_the_random_state_of_the_gpu_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = {"state": torch.tensor([7], dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: stream["state"])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: stream.update(state=state)
    )
    learner = make_learner()
    assert learner.state()["cuda_random"] is None
    learner.device = torch.device("cuda")
    state = learner.state()
    stream["state"] = torch.tensor([8], dtype=torch.uint8)
    learner.load(state)
    assert stream["state"].item() == 7


# --- learning rates and value scales --------------------------------------------------------------


def test_a_steered_rate_ignores_the_schedule_and_changes_with_the_next_update() -> None:
    learner = make_learner(ppo.Config(target_kl=1000.0))  # no update moves so far
    first = ppo.update(learner, played(), 0.5)
    second = ppo.update(learner, played(), 0.5)
    assert first["train/learning_rate"] == 1e-3
    assert second["train/learning_rate"] == pytest.approx(1e-3 * 1.5)
    assert learner.optimizer.param_groups[0]["lr"] == second["train/learning_rate"]


def test_a_steered_rate_is_resumed_unless_another_is_given() -> None:
    learner = make_learner(ppo.Config(target_kl=1000.0))
    ppo.update(learner, played(), 0)
    for given, goes_on_at in ((1e-3, 1.5e-3), (1e-5, 1e-5)):
        again = make_learner(ppo.Config(target_kl=1000.0, learning_rate=given))
        again.load(learner.state())
        assert again.learning_rate.value == pytest.approx(goes_on_at)


def test_target_kl_is_refused_if_an_update_is_one_step() -> None:
    for name in ("a2c", "a3c", "n_step_q"):
        with pytest.raises(TrainingError, match="there is no field 'target_kl'"):
            algorithms.named(name).Config(target_kl=0.01)
    for name in ("ppo", "impala", "appo", "ga3c"):
        with pytest.raises(TrainingError, match="set target_kl to 0"):
            algorithms.named(name).Config(target_kl=0.01, epochs=1, minibatches=1)


def test_a_batch_has_valid_rows_only() -> None:
    learner = make_learner(model=toys.network(1))
    trajectory = played(model=learner.model, env=toys.Counting)
    batch = gae_batch(learner, trajectory, normalize_advantage=False)
    assert len(batch.obs) == trajectory.valid.sum() < trajectory.valid.size
    assert 3.0 not in batch.obs  # the last observation of a Counting episode
    assert all(len(part) == len(batch.obs) for part in batch.transitions)


def test_advantages_are_normalized_over_valid_rows() -> None:
    learner = make_learner(model=toys.network(1))
    trajectory = played(model=learner.model, env=toys.Counting)
    batch = gae_batch(learner, trajectory, normalize_advantage=True)
    torch.testing.assert_close(
        batch.transitions.advantage.mean(), torch.tensor(0.0), atol=1e-6, rtol=0
    )
    deviation = batch.transitions.advantage.std(correction=0)
    torch.testing.assert_close(deviation, torch.tensor(1.0), atol=1e-4, rtol=0)


def test_rewards_are_clipped_in_the_learner() -> None:
    trajectory = played(model=toys.network(1), env=toys.Counting)
    assert trajectory.reward.max() == 30.0
    by_one = dataclasses.replace(CONFIG, reward_clip=1.0)
    unclipped = dataclasses.replace(CONFIG, reward_clip=0.0)
    clipped = to_device(make_learner(by_one, toys.network(1)), trajectory)
    raw = to_device(make_learner(unclipped, toys.network(1)), trajectory)
    assert clipped.reward.max() == 1.0
    assert raw.reward.max() == 30.0


@pytest.mark.parametrize(("env", "bound"), [("ALE/Pong-v5", 1.0), ("CartPole-v1", 0.0)])
def test_by_default_atari_clips_rewards_and_others_normalize_values(env: str, bound: float) -> None:
    config = dataclasses.replace(CONFIG, env=env)
    assert config.clips_rewards_at == bound
    assert normalizes_values(config) == (bound == 0.0)
    given = dataclasses.replace(config, reward_clip=2.0, normalize_values=True)
    assert (given.clips_rewards_at, normalizes_values(given)) == (2.0, True)


def test_only_a_terminated_step_has_no_discount() -> None:
    for truncates in (False, True):
        env = lambda truncates=truncates: toys.Counting(2, truncates)
        trajectory = played(model=toys.network(1), env=env)
        batch = to_device(make_learner(model=toys.network(1)), trajectory)
        gamma = CONFIG.gamma
        want = [gamma, gamma if truncates else 0.0, gamma] * 2
        assert batch.discount[:, 0].tolist() == pytest.approx(want)


def test_without_normalization_values_are_the_actors() -> None:
    trajectory, plain = played(), make_learner(dataclasses.replace(CONFIG, normalize_values=False))
    rollout = to_device(plain, trajectory)
    value = rollout.rows.select(torch.from_numpy(trajectory.value))
    assert torch.equal(rollout.rows.select(rollout.value), value)


def test_normalized_values_are_denormalized_for_returns() -> None:
    config = dataclasses.replace(CONFIG, normalize_values=True, reward_clip=0.0)
    learner = make_learner(config, toys.network(1))
    trajectory = played(config, toys.network(1), env=toys.Counting)
    batch = gae_batch(learner, trajectory, normalize_advantage=False)
    target = batch.transitions.value_target
    torch.testing.assert_close(target.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(target.std(correction=0), torch.tensor(1.0), atol=1e-2, rtol=0)
    mean, deviation = learner.value_scale.mean, learner.value_scale.std
    assert mean > 10  # rewards are 10, 20, 30
    rollout = to_device(learner, trajectory)
    select = rollout.rows.select
    want = select(torch.from_numpy(trajectory.value)) * deviation + mean
    torch.testing.assert_close(select(rollout.value), want)
    with torch.no_grad():
        _, value = learner.unroll(rollout)
    torch.testing.assert_close(select(learner.value_scale.denormalize(value)), want)


def update(template: Any, learner: Learner[Any], trajectory: Trajectory) -> dict[str, float]:
    """Call an algorithm's update at the beginning of its schedule; return its metrics."""
    if template is not ga3c:
        updated: dict[str, float] = template.update(learner, trajectory, 0)
        return updated
    metrics: dict[str, float] = {}
    lock, record = threading.Lock(), lambda found, staleness: metrics.update(found)
    ga3c.update(learner, toys.network(), lock, trajectory, 0, record)
    return metrics


@pytest.mark.parametrize("template", [a2c, ppo, impala, appo, ga3c])
def test_learning_does_not_depend_on_the_scale_of_rewards(template: Any) -> None:
    config = template.Config(env=toys.Guess, envs_per_actor=4, random_start=0, rollout_steps=8)
    updated = []
    for unit in (1.0, 1e-9, 1e6):
        learner = make_learner(config)
        for _ in range(2):
            trajectory = played(config, learner.model)
            scaled = dataclasses.replace(trajectory, reward=trajectory.reward * np.float32(unit))
            update(template, learner, scaled)
        updated.append(toys.weights(learner.model))
    for other in updated[1:]:
        torch.testing.assert_close(other, updated[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("normalizes", [False, True])
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
def test_every_algorithm_normalizes_advantages_if_asked_to(
    template: Any, fields: dict[str, Any], normalizes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    advantages: list[torch.Tensor] = []
    forward = Learner.forward

    def spy(learner: Learner[Any], batch: Batch, *rest: Any) -> Any:
        advantages.append(batch.transition_rows.advantage)
        return forward(learner, batch, *rest)

    monkeypatch.setattr(Learner, "forward", spy)
    config = template.Config(
        env=toys.Guess, envs_per_actor=4, random_start=0, normalize_advantage=normalizes, **fields
    )
    if template is a3c:
        work = a3c.make_work(config, toys.network(), 5)
        work.gradient(work.flat.vector, None)
    else:
        update(template, make_learner(config), played(config))

    deviation, mean = torch.std_mean(torch.cat(advantages), correction=0)
    moments = [deviation.item(), mean.item()]
    assert (moments == pytest.approx([1, 0], abs=1e-4)) == normalizes


@pytest.mark.parametrize(
    ("template", "fields"),
    [(ppo, {}), (impala, {}), (appo, {}), (appo, {"v_trace": False}), (ga3c, {})],
)
def test_staleness_does_not_affect_the_kl_that_steers_the_rate(
    template: Any, fields: dict[str, Any]
) -> None:
    config = template.Config(
        env=toys.Guess, envs_per_actor=4, learning_rate=0.0, target_kl=0.01, **fields
    )
    learner = make_learner(config, toys.network(seed=9))
    learner.version = 1  # the trajectory is of version 0, from another network
    nn.init.normal_(learner.model.get_parameter("policy.weight"))
    trajectory = played(config)
    rows = gae_batch(learner, trajectory, normalize_advantage=False).transitions
    assert (rows.start_log_prob - rows.old_log_prob).abs().max() > 0.1

    assert update(template, learner, trajectory)["train/approx_kl"] == pytest.approx(0, abs=1e-6)


def test_explained_variance_compares_values_with_targets() -> None:
    learner, rollout = make_learner(), to_device(make_learner(), played())
    target = torch.zeros_like(rollout.reward)
    target[rollout.valid] = torch.arange(float(rollout.valid.sum()))
    rollout = rollout._replace(value=torch.zeros_like(rollout.value))
    shares = []
    for value in (target + 5, target / 2):  # wrong by a constant, and by half
        rollout.value[:-1] = value
        make_batch(learner, rollout, Targets(target, target))
        shares.append(learner.explained_variance)
        learner.explained_variance = None
    assert shares == pytest.approx([1, 0.75])


def test_rate_and_coefficients_are_annealed_linearly() -> None:
    rate = LearningRate(7e-4)
    rates = []
    for progress in (0.0, 0.5, 1.0):
        rate.anneal(progress)
        rates.append(rate.value)
    assert rates == pytest.approx([7e-4, 4e-4, 1e-4])
    coefficients = [annealed(0.004, 0.001, progress) for progress in (0.0, 0.5, 1.0)]
    assert coefficients == pytest.approx([0.004, 0.0025, 0.001])


@pytest.mark.parametrize("progress", [-0.1, 1.1, 4096, math.nan])
def test_progress_outside_0_to_1_is_refused(progress: float) -> None:
    with pytest.raises(ValueError, match="progress is from 0 to 1, not"):
        LearningRate(7e-4).anneal(progress)


@pytest.mark.parametrize(
    ("start", "given", "end"), [(7e-4, None, 1e-4), (1e-6, None, 1e-6), (7e-4, 3e-3, 3e-3)]
)
def test_the_end_rate_never_exceeds_the_start_unless_given(
    start: float, given: float | None, end: float
) -> None:
    rate = LearningRate(start, given)
    rate.anneal(1.0)
    assert rate.value == pytest.approx(end)


@pytest.mark.parametrize(
    ("moved", "value"),
    [(0.001, 4.5e-4), (0.005, 3e-4), (0.01, 3e-4), (0.02, 3e-4), (0.03, 2e-4), (math.inf, 2e-4)],
)
def test_the_rate_is_steered_towards_target_kl(moved: float, value: float) -> None:
    rate = LearningRate(3e-4, 1e-4, target_kl=0.01)
    rate.anneal(1.0)  # has no effect on a steered rate
    rate.steer(moved)
    assert rate.value == pytest.approx(value)


def test_the_steered_rate_has_bounds() -> None:
    rate = LearningRate(3e-4, 1e-4, target_kl=0.01)
    for _ in range(20):
        rate.steer(0.0)
    assert rate.value == 3e-4 * 4
    for _ in range(30):
        rate.steer(1.0)
    assert rate.value == pytest.approx(1e-4 / 10)


@pytest.mark.parametrize("name", ["ppo", "impala", "appo", "ga3c"])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "0.001, steered by target_kl=0.01, from 1e-05 to 0.004"),
        ({"learning_rate": 1e-4}, "0.0001"),
        ({"learning_rate": 1e-3}, "0.001, annealed to 0.0001"),
        (
            {"learning_rate": 2e-4, "target_kl": 0.02},
            "0.0002, steered by target_kl=0.02, from 1e-05 to 0.0008",
        ),
        ({"target_kl": 0.0, "learning_rate_end": 5e-4}, "0.001, annealed to 0.0005"),
    ],
    ids=str,
)
def test_a_given_rate_is_steered_only_with_a_given_target_kl(
    name: str, given: dict[str, Any], text: str
) -> None:
    rate = LearningRate.of(algorithms.named(name).Config(**given))
    assert str(rate) == text
    rate.steer(0.0)
    assert (rate.value > rate.start) == ("steered" in text)


@pytest.mark.parametrize("name", ["dqn", "c51", "rainbow", "a2c", "a3c", "n_step_q", "sac", "td3"])
def test_a_low_given_rate_does_not_rise(name: str) -> None:
    # With 16 environments, a2c does not scale its rate.
    rate = LearningRate.of(algorithms.named(name).Config(learning_rate=1e-5, actors=1))
    assert rate.end == rate.start == 1e-5


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_the_value_scale_has_the_mean_and_deviation_of_all_targets(unit: float) -> None:
    torch.manual_seed(0)
    targets = unit * (30 + 7 * torch.randn(400))
    scale = ValueScale()
    for batch in torch.split(targets, [10, 90, 300]):
        scale.update(batch)
    assert scale.mean == pytest.approx(np.mean(targets.numpy()), rel=1e-5)
    assert scale.std == pytest.approx(np.std(targets.numpy()), rel=1e-3)


def test_old_targets_fade_once_the_horizon_is_reached() -> None:
    scale = ValueScale()
    scale.update(torch.zeros(1000), horizon=100)
    scale.update(torch.ones(100), horizon=100)
    assert scale.mean == pytest.approx(0.5)


def test_equal_targets_give_a_positive_deviation() -> None:
    scale = ValueScale()
    scale.update(torch.full((10,), 5.0))
    assert 0 < scale.std < 0.01


def test_the_reward_scale_is_the_rms_of_nonzero_rewards() -> None:
    scale = RewardScale()
    assert (scale.mean, scale.std) == (0, 1)
    for rewards in ([0.0, 0.0], [3.0, 0.0], [-4.0]):
        reward = torch.tensor(rewards)
        scale.update(scale.samples(torch.full_like(reward, 100.0), reward))
    assert scale.mean == 0
    assert scale.std == pytest.approx(math.sqrt((9 + 16) / 2))
