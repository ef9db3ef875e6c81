"""A2C: hand-worked losses, the update, scaled learning rates, and resuming bit for bit."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remotely_rl import a2c
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.experience.batch import Transitions
from remotely_rl.learning.learner import Learner, LearningRate
from remotely_rl.runs import run_folder
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = a2c.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=8,
    random_start=0,
    learning_rate=0.01,
    learning_rate_end=0.01,
    rate_rule="none",
    entropy_coef=0.01,
    entropy_coef_end=0.01,
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
)
COIN = Discrete(2)


def rows(
    action: list[int], advantage: list[float], target: list[float], log_prob: list[float]
) -> Transitions:
    column = [torch.tensor(numbers) for numbers in (action, log_prob, advantage, target, log_prob)]
    return Transitions(*column)


def test_losses_and_gradients_match_hand_worked_numbers() -> None:
    # pi = (1/4, 3/4), a = 0, A = 2; V = 3, R = 1.
    policy = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)
    value = torch.tensor([3.0], requires_grad=True)
    learnt = rows([0], [2.0], [1.0], [math.log(0.25)])
    config = dataclasses.replace(CONFIG, value_coef=0.25)
    out = a2c.compute_losses(policy, value, learnt, config, 0.0, COIN)
    assert out.policy.item() == pytest.approx(2 * math.log(4))
    assert out.value.item() == pytest.approx(0.5 * 2.0**2)
    assert out.entropy.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))
    assert out.kl.item() == pytest.approx(0.0, abs=1e-6)
    assert out.total.item() == pytest.approx(2 * math.log(4) + 0.25 * 2.0)
    of_policy, of_value = torch.autograd.grad(out.total, (policy, value))
    assert of_policy[0].tolist() == pytest.approx([-1.5, 1.5])  # -A (1[a] - pi)
    assert of_value.item() == pytest.approx(0.25 * 2.0)


def test_the_entropy_bonus_favours_rarer_actions() -> None:
    # dH / d logit_i = -pi_i (log pi_i + H)
    policy = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)
    learnt = rows([0], [0.0], [0.0], [0.0])
    out = a2c.compute_losses(policy, torch.zeros(1), learnt, CONFIG, 0.1, COIN)
    (grad,) = torch.autograd.grad(out.total, policy)
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    by_hand = 0.1 * 0.25 * (math.log(0.25) + entropy)
    assert grad[0].tolist() == pytest.approx([by_hand, -by_hand])
    assert by_hand < 0  # gradient descent makes the rarer action likelier


def test_targets_are_n_step_returns_from_the_actors_values() -> None:
    # With lambda 1 the target is the sum of rewards up to V of the last observation.
    model = toys.network(1)
    learner = Learner(
        dataclasses.replace(CONFIG, normalize_advantage=False, normalize_values=False), model, COIN
    )
    trajectory = toys.actor(CONFIG, model, env=toys.Counting, rollout_steps=3).sample()
    seen: list[Transitions] = []

    def spy(*given: Any) -> Any:
        seen.append(given[2])
        return compute_losses(*given)

    compute_losses = a2c.compute_losses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(a2c, "compute_losses", spy)
        a2c.update(learner, trajectory.trajectory, 0)
    gamma = CONFIG.gamma
    want = [10 + gamma * 20 + gamma**2 * 30, 20 + gamma * 30, 30.0]  # rewards of one episode
    (learnt,) = seen
    assert learnt.value_target[:: CONFIG.envs_per_actor].tolist() == pytest.approx(want)
    value = trajectory.trajectory.value[:3, 0]
    advantage = learnt.advantage[:: CONFIG.envs_per_actor]
    assert advantage.tolist() == pytest.approx(np.array(want) - value, rel=1e-5)


@pytest.mark.parametrize(
    ("environments", "rate"),
    [(16, 7e-4), (32, 9.90e-4), (64, 1.40e-3), (128, 1.98e-3), (256, 2.80e-3), (512, 3.96e-3)],
)
def test_the_learning_rate_grows_with_the_square_root_of_the_environments(
    environments: int, rate: float
) -> None:
    config = a2c.Config(actors=2, envs_per_actor=environments // 2, learning_rate=7e-4)
    assert LearningRate.of(config).start == pytest.approx(rate, rel=2e-3)
    assert LearningRate.of(config).end == pytest.approx(rate / 7, rel=2e-3)
    unscaled = LearningRate.of(dataclasses.replace(config, rate_rule="none"))
    assert (unscaled.start, unscaled.end) == (7e-4, 1e-4)


@pytest.mark.usefixtures("local")
def test_the_run_folder_keeps_the_unscaled_learning_rate(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, actors=16, rate_rule="sqrt", total_steps=1)
    run = tmp_path / "run"
    a2c.train(config, run=run)
    assert run_folder.read(run).config["learning_rate"] == 0.01
    state = run_folder.load_checkpoint(run / "checkpoint.pt")["learner"]
    assert state["rate"] == pytest.approx(0.02)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(("env", "lstm"), [("CartPole-v1", 0), (toys.Guess, 4)], ids=str)
def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, env: Any, lstm: int
) -> None:
    config = dataclasses.replace(CONFIG, env=env, lstm=lstm)
    toys.assert_resumed_to_the_bit(a2c.train, config, (150, 300), tmp_path)
