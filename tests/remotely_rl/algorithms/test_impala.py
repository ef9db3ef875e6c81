"""IMPALA: the update against the paper's, and learning with and without staleness."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remotely_rl import a2c, impala
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.experience.batch import Batch, Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import returns
from remotely_rl.learning.learner import Learner, to_device
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = impala.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=6,
    batch_trajectories=2,
    minibatches=2,
    learning_rate=0.01,
    learning_rate_end=0.01,
    anneal_steps=1000,
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
)
PAPER = dataclasses.replace(
    CONFIG,
    epochs=1,
    minibatches=1,
    clip_range=0.0,
    rho_bar_pg=1.0,
    normalize_advantage=False,
    gae_lambda=1.0,
    target_kl=0.0,
    normalize_values=False,
)
COIN = Discrete(2)


def make_learner(config: impala.Config = CONFIG, observations: int = 2) -> Learner[impala.Config]:
    return Learner(config, toys.network(observations), COIN)


def played(of: Learner[Any], seed: int = 5, **changes: Any) -> Trajectory:
    return toys.actor(of.config, of.model, seed, **changes).sample().trajectory


def v_trace_batch(learner: Learner[impala.Config], trajectory: Trajectory) -> Batch:
    """The learner's V-trace batch of a trajectory."""
    rollout = to_device(learner, trajectory)
    with torch.no_grad():
        policy, value = learner.unroll(rollout)
    return impala.v_trace_batch(learner, rollout, policy, value)


def stale(trajectory: Trajectory, by: float = 0.5) -> Trajectory:
    """The trajectory as if sampled by another policy: mu is not pi."""
    return dataclasses.replace(trajectory, log_prob=trajectory.log_prob + np.float32(by))


@pytest.mark.parametrize("clip", [0.0, 0.9], ids=["the paper's", "within the bound"])
def test_the_first_step_follows_the_papers_gradient(clip: float) -> None:
    config = dataclasses.replace(PAPER, clip_range=clip)
    learner = make_learner(config)
    trajectory = stale(played(learner))
    batch = v_trace_batch(learner, trajectory)
    policy, value, rows = batch.forward(learner.model)
    parts = impala.compute_losses(policy, value, rows, config, 0.0, COIN)

    # Section 4.2, written out: rho_s grad log pi(a_s) (r_s + gamma v_{s+1} - V_s), with rho < 1.
    logits, baseline = learner.model(torch.from_numpy(trajectory.obs).flatten(0, 1))
    log_prob = logits.log_softmax(-1).view(7, 4, 2)[:-1]
    log_prob = log_prob.gather(-1, torch.from_numpy(trajectory.action)[..., None])[..., 0]
    target = returns.v_trace(
        log_prob.detach() - torch.from_numpy(trajectory.log_prob),
        torch.from_numpy(trajectory.reward),
        PAPER.gamma * ~torch.from_numpy(trajectory.terminated),
        baseline.detach().view(7, 4),
        valid=torch.from_numpy(trajectory.valid),
    )
    valid = torch.from_numpy(trajectory.valid)
    by_hand = -(log_prob * target.advantage)[valid].mean()
    error = 0.5 * (baseline.view(7, 4)[:-1] - target.value)[valid].square().mean()
    weights = list(learner.model.parameters())
    for ours, theirs in ((parts.policy, by_hand), (parts.value, error)):
        mine = torch.autograd.grad(ours, weights, allow_unused=True, retain_graph=True)
        other = torch.autograd.grad(theirs, weights, allow_unused=True, retain_graph=True)
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b)
    assert parts.kl.item() == pytest.approx(0, abs=1e-6)


def test_losses_with_and_without_a_clip_match_hand_worked_numbers() -> None:
    # pi(a) = 1/2, three times its value before the update; rho A = 2.
    policy = torch.zeros(1, 2, requires_grad=True)
    before = torch.tensor([math.log(1 / 6)])
    rows = Transitions(torch.tensor([0]), before, torch.tensor([2.0]), torch.zeros(1), before)
    free = impala.compute_losses(policy, torch.zeros(1), rows, PAPER, 0.0, COIN)
    assert free.policy.item() == pytest.approx(-3 * 2)
    (grad,) = torch.autograd.grad(free.total, policy)
    assert grad[0].tolist() == pytest.approx([-3.0, 3.0])
    bound = impala.compute_losses(policy, torch.zeros(1), rows, CONFIG, 0.0, COIN)
    assert bound.policy.item() == pytest.approx(-1.2 * 2)
    (grad,) = torch.autograd.grad(bound.total, policy)
    assert grad.abs().max() == 0


def test_v_trace_targets_are_those_of_the_current_network() -> None:
    acted, learner = make_learner(PAPER), Learner(PAPER, toys.network(seed=9), COIN)
    trajectory = played(acted)
    batch = v_trace_batch(learner, trajectory)
    with torch.no_grad():
        policy, value = learner.model(batch.obs)
    # In a one-step episode the target is rho (r - V) + V, with the current V.
    valid = torch.from_numpy(trajectory.valid)
    reward = torch.from_numpy(trajectory.reward)[valid]
    before = torch.from_numpy(trajectory.log_prob)[valid]
    rho = (COIN.log_prob(policy, batch.transitions.action) - before).exp().clamp(max=1.0)
    torch.testing.assert_close(
        batch.transitions.old_log_prob, COIN.log_prob(policy, batch.transitions.action)
    )
    torch.testing.assert_close(batch.transitions.value_target, value + rho * (reward - value))
    torch.testing.assert_close(batch.transitions.advantage, rho * (reward - value))


@pytest.mark.parametrize("gae_lambda", [1.0, 0.9])
def test_on_policy_one_epoch_is_the_update_of_a2c(gae_lambda: float) -> None:
    config = dataclasses.replace(PAPER, gae_lambda=gae_lambda, env=toys.Counting)
    ours = Learner(config, toys.network(1), COIN)
    as_a2c = toys.converted(config, a2c.Config, rate_rule="none")
    theirs = Learner(as_a2c, toys.network(1), COIN)
    actor = toys.actor(config, ours.model)
    for progress in (0, 0.1, 0.2):
        trajectory = actor.sample().trajectory
        numbers = impala.update(ours, trajectory, progress)
        of_a2c = a2c.update(theirs, trajectory, progress)
        for name in of_a2c.keys() - {"train/policy_loss"}:  # it differs, but not its gradient
            # Hundreds in float32, whose last digits depend on the processor's vectors.
            assert of_a2c[name] == pytest.approx(numbers[name], rel=1e-6, abs=1e-5)
        # IMPALA uses the learner's V and A2C the actor's: the same, up to rounding.
        torch.testing.assert_close(
            toys.weights(ours.model), toys.weights(theirs.model), atol=1e-5, rtol=1e-4
        )
        actor.set_param(ours.parameters())


def test_the_papers_settings_learn_a_one_step_game() -> None:
    learner = make_learner(PAPER)
    actor = toys.actor(PAPER, learner.model, rollout_steps=16)
    scores: list[float] = []
    for _ in range(60):
        rollout = actor.sample()
        scores = [game.score for game in rollout.episodes]
        impala.update(learner, rollout.trajectory, 0)
        actor.set_param(learner.parameters())
    assert np.mean(scores) > 0.9


@pytest.mark.usefixtures("local")
def test_an_lstm_learns_in_seconds(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, env=toys.Remember, lstm=8, target=0.9, total_steps=20_000)
    assert "is reached" in impala.train(config, run=tmp_path / "run").ended


@pytest.mark.usefixtures("here")
def test_asynchronous_actors_are_stale_and_synchronous_ones_repeat_a_run(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, ahead=2, target=0.97, total_steps=20_000)
    result = impala.train(config, run=tmp_path / "free")
    assert "is reached" in result.ended
    assert toys.staleness(tmp_path / "free") >= 1

    for bound, name in ((0, "one"), (0, "same"), (1, "behind")):
        bounded = dataclasses.replace(config, max_staleness=bound, target=None, total_steps=150)
        impala.train(bounded, run=tmp_path / name)
        assert toys.staleness(tmp_path / name) == bound
    toys.assert_same_bits(tmp_path / "one", tmp_path / "same")
