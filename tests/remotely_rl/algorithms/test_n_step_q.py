"""Asynchronous n-step Q-learning: hand-worked targets, exploration, and learning."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import remotely
from remotely_rl import n_step_q, networks
from remotely_rl.algorithms.n_step_q import QActor
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Transitions
from remotely_rl.learning.learner import RewardScale, gae_batch
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = n_step_q.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=6,
    random_start=0,
    optimizer="adam",
    learning_rate=0.01,
    learning_rate_end=0.01,
    explore_steps=2000,
    target_every=200,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.95,
    total_steps=40_000,
)


def test_the_loss_is_half_the_squared_error_of_the_action_taken() -> None:
    policy = torch.tensor([[1.0, 3.0], [2.0, 0.0]], requires_grad=True)
    zeros = torch.zeros(2)
    rows = Transitions(torch.tensor([1, 0]), zeros, zeros, torch.tensor([1.0, 5.0]), zeros)

    parts = n_step_q.compute_losses(policy, torch.zeros(2), rows, is_dueling=False)
    parts.total.backward()  # type: ignore[no-untyped-call]

    assert float(parts.total.detach()) == pytest.approx((2.0**2 + 3.0**2) / 2 / 2)
    assert policy.grad is not None
    assert policy.grad.tolist() == [[0.0, 1.0], [-1.5, 0.0]]


def actor(**changes: object) -> QActor:
    config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]
    return remotely.local(QActor, config, toys.network(2), 5)


@pytest.mark.parametrize(
    ("gae_lambda", "targets"),
    [
        # Unclipped rewards 10, 20 and 30; the episode ends, so there is no bootstrap.
        (1.0, [10 + 0.5 * 20 + 0.25 * 30, 20 + 0.5 * 30, 30.0]),
        (0.0, None),
    ],
)
def test_targets_are_n_step_or_one_step_returns(
    gae_lambda: float, targets: list[float] | None
) -> None:
    config = dataclasses.replace(
        CONFIG,
        env=toys.Counting,
        rollout_steps=3,
        gamma=0.5,
        reward_clip=0.0,
        gae_lambda=gae_lambda,
    )
    work = n_step_q.make_work(config, toys.network(1), 5)
    # Rewards of 1 were met before; until one is, values count for nothing.
    work.learner.value_scale = RewardScale(variance=1.0, count=1.0)
    trajectory = work.actor.sample().trajectory
    batch = gae_batch(work.learner, trajectory, normalize_advantage=False)
    got = work.learner.value_scale.denormalize(batch.transitions.value_target).view(3, -1)[:, 0]

    if targets is None:
        best = trajectory.value[:, 0]  # by the target network, of each observation
        targets = [10 + 0.5 * best[1], 20 + 0.5 * best[2], 30.0]
    assert got.tolist() == pytest.approx(targets)


def test_values_are_the_target_networks_best_or_taken_action() -> None:
    player = actor(dueling=False)
    with torch.no_grad():
        for part in player.target.parameters():
            part.zero_()
        assert isinstance(player.target, networks.MLP)
        player.target.policy.bias.copy_(torch.tensor([3.0, 7.0]))

    out = player.act(player.players[0], player.players[0].obs, last=False)
    assert out.value.tolist() == [7.0] * 4

    player.config = dataclasses.replace(player.config, on_policy=True)
    out = player.act(player.players[0], player.players[0].obs, last=False)
    assert out.value.tolist() == [[3.0, 7.0][action] for action in out.action]


def test_the_target_network_is_updated_once_per_interval() -> None:
    player = actor(target_every=100)
    with torch.no_grad():
        for part in player.model.parameters():
            part.add_(1.0)

    player.env_steps = 99
    player.sample()
    assert not torch.equal(toys.weights(player.target), toys.weights(player.model))

    player.env_steps = 100
    player.sample()
    assert torch.equal(toys.weights(player.target), toys.weights(player.model))


def test_final_epsilons_are_in_the_papers_proportions() -> None:
    final = n_step_q.finals(10, seed=1)

    assert sorted(final.tolist()) == pytest.approx([0.01] * 3 + [0.1] * 4 + [0.5] * 3)


def test_single_environments_draw_final_epsilons_in_the_papers_proportions() -> None:
    drawn = [float(n_step_q.finals(1, seed)) for seed in range(2000)]

    for value, share in n_step_q.EPSILONS:
        count = sum(abs(one - value) < 1e-6 for one in drawn)
        assert abs(count - 2000 * share) < 4 * (2000 * share * (1 - share)) ** 0.5


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    "changes",
    [{"gae_lambda": 0.0, "on_policy": True}, {"dueling": False}],
    ids=["SARSA", "one head"],
)
def test_a_one_step_game_is_learnt_in_seconds(changes: dict[str, object], tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, **changes)  # type: ignore[arg-type]

    assert "is reached" in n_step_q.train(config, run=tmp_path / "run").ended


@pytest.mark.usefixtures("here")
def test_workers_in_processes_learn_it_with_another_rule(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, sync="semi_async:n=2")

    assert "is reached" in n_step_q.train(config, run=tmp_path / "run").ended


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("env", "model", "message"),
    [
        (toys.Aim, None, r"needs a Discrete\(n\) action space"),
        (toys.Guess, toys.with_a_memory, "keeps no recurrent state; to train an LSTM use a2c"),
    ],
)
def test_invalid_settings_environments_and_models_are_refused(
    env: Any, model: Any, message: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, env=env)
    with pytest.raises(TrainingError, match=message):
        n_step_q.train(config, model, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
