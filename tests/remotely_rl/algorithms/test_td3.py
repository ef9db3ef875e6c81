"""TD3: hand-worked targets and losses, the delay, exploration noise, learning and resuming."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import remotely
from remotely_rl import td3
from remotely_rl.acting.random_first import RandomFirst
from remotely_rl.agents import evaluation, load
from remotely_rl.algorithms.td3 import DelayedLearner
from remotely_rl.errors import TrainingError
from remotely_rl.networks import Critics, CriticsOfAll, PolicyAndCritics, PolicyNetwork
from remotely_rl.networks.policy_and_critics import StackedLinear
from tests.remotely_rl import toys
from tests.remotely_rl.algorithms.continuous import BOX, VECTOR, batch

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = td3.Config(
    env=toys.Aim,
    rollout_steps=16,
    replay_rows=10_000,
    learn_from=128,
    batch_size=64,
    replay_ratio=16.0,
    learning_rate=0.01,
    hidden="32,32",
    device="cpu",
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.8,
    total_steps=2_500,
)


def learner(**changes: Any) -> DelayedLearner:
    config = dataclasses.replace(CONFIG, **changes)
    torch.manual_seed(0)
    return DelayedLearner(config, config.make_model(None, VECTOR, BOX), BOX)


@torch.no_grad()
def make_linear(critics: Critics | CriticsOfAll, *slopes: float) -> None:
    """Make each critic return a slope times (the action's first coordinate + 1)."""
    for parameter in critics.parameters():
        parameter.zero_()
    first, _, second, _, last = critics.layers
    assert isinstance(first, StackedLinear)
    assert isinstance(second, StackedLinear)
    assert isinstance(last, StackedLinear)
    first.weight[:, critics.encoder.width, 0] = 1.0
    first.bias[:, 0, 0] = 1.0
    second.weight[:, 0, 0] = 1.0
    last.weight[:, 0, 0] = torch.tensor(slopes)


@torch.no_grad()
def make_constant(policy: Any, *means: float) -> None:
    """Make a policy return constants."""
    assert isinstance(policy, PolicyNetwork)
    policy.policy.weight.zero_()
    policy.policy.bias.copy_(torch.tensor(means))


def test_targets_use_the_lower_value_of_the_target_policys_action() -> None:
    made = learner(target_noise=0.0)
    make_constant(made.target.policy, 0.5, 0.0)
    make_linear(made.target.critics, 3.0, 2.0)
    steps = batch(2)._replace(reward=torch.tensor([1.0, 2.0]), discount=torch.tensor([0.9, 0.0]))

    found = td3.compute_targets(made, steps)

    assert found.tolist() == pytest.approx([1 + 0.9 * 2 * (1 + np.tanh(0.5)), 2.0])


def test_target_noise_is_clipped() -> None:
    made = learner(target_noise=10.0, target_noise_clip=0.25)
    make_constant(made.target.policy, 0.0, 0.0)
    make_linear(made.target.critics, 1.0, 2.0)
    steps = batch(400)._replace(reward=torch.zeros(400), discount=torch.ones(400))

    found = td3.compute_targets(made, steps)

    assert (found.min().item(), found.max().item()) == pytest.approx((0.75, 1.25))
    assert not torch.equal(found, td3.compute_targets(made, steps))


def test_the_critic_loss_is_weighted_and_priorities_are_mean_absolute_errors() -> None:
    made = learner()
    make_linear(made.model.critics, 2.0, 4.0)
    steps = batch(2)._replace(
        discount=torch.zeros(2),
        reward=torch.tensor([1.0, -1.0]),
        action=torch.zeros(2, 2),
        weight=torch.tensor([1.0, 0.5]),
    )

    parts, q, priority = td3.compute_losses(made, steps)

    # Errors of 1 and 3 in the first row; of 3 and 5, with half the weight, in the second.
    assert parts.value.item() == pytest.approx((1 + 9 + 0.5 * (9 + 25)) / 4 / 2)
    assert q.tolist() == [[2.0, 2.0], [4.0, 4.0]]
    assert priority.tolist() == pytest.approx([2.0, 4.0])


def test_the_policy_follows_the_first_critic_and_losses_share_no_gradients() -> None:
    made = learner(policy_delay=1)
    make_constant(made.model.policy, 0.5, 0.0)
    make_linear(made.model.critics, 2.0, -7.0)
    policy, critics = (list(one.parameters()) for one in made.model.children())
    parts, _, _ = td3.compute_losses(made, batch())

    def gradients(loss: Tensor) -> list[Tensor | None]:
        return list(
            torch.autograd.grad(loss, [*policy, *critics], retain_graph=True, allow_unused=True)
        )

    of_policy, of_critics, total = (
        gradients(loss) for loss in (parts.policy, parts.value, parts.total)
    )
    assert parts.policy.item() == pytest.approx(-2 * (1 + np.tanh(0.5)))
    assert [one is not None for one in of_policy] == [True] * len(policy) + [False] * 6
    assert [one is not None for one in of_critics] == [False] * len(policy) + [True] * 6
    for whole, part in zip(
        total, of_policy[: len(policy)] + of_critics[len(policy) :], strict=True
    ):
        torch.testing.assert_close(whole, part)
    bias = of_policy[len(policy) - 1]
    assert bias is not None
    assert bias.tolist() == pytest.approx([-2 * (1 - np.tanh(0.5) ** 2), 0.0])


def test_policy_and_targets_move_every_policy_delay_updates() -> None:
    made, steps = learner(policy_delay=3, tau=0.1), batch()
    moved = []
    for _ in range(6):
        before = [toys.weights(one) for one in (made.model.critics, made.model.policy, made.target)]
        metrics, _ = td3.update(made, steps, 0.0)
        after = [toys.weights(one) for one in (made.model.critics, made.model.policy, made.target)]
        moved.append([not torch.equal(*pair) for pair in zip(before, after, strict=True)])
        assert ("train/policy_loss" in metrics) == moved[-1][1]

    assert moved == [[True, False, False], [True, False, False], [True, True, True]] * 2


def test_targets_move_by_tau_towards_the_networks() -> None:
    made = learner(policy_delay=1, tau=0.25)
    before = toys.weights(made.target)
    td3.update(made, batch(), 0.0)
    expected = before + 0.25 * (toys.weights(made.model) - before)
    torch.testing.assert_close(toys.weights(made.target), expected)


def test_updates_lower_the_critics_error() -> None:
    made, steps = learner(learning_rate=3e-3), batch()._replace(discount=torch.zeros(6))
    errors = [float(np.mean(td3.update(made, steps, 0.0).priority)) for _ in range(40)]
    assert errors[-1] < 0.5 * errors[0]
    assert made.version == 40


def test_greedy_actions_have_no_noise_and_drawn_ones_have() -> None:
    policy = torch.tensor([[0.5, 9.0]]).repeat(4_000, 1)
    best = CONFIG.best(BOX, policy)
    drawn = CONFIG.draw(BOX, policy, torch.Generator().manual_seed(1))

    assert best[0].tolist() == pytest.approx([np.tanh(0.5), 1.0])
    assert (drawn - best)[:, 0].std().item() == pytest.approx(0.1, rel=0.05)
    assert drawn.abs().max().item() <= 1.0


def test_actors_play_uniformly_at_random_until_learn_from() -> None:
    config = dataclasses.replace(CONFIG, envs_per_actor=2, rollout_steps=400)
    with_envs = config.make_environments(1)
    model = config.make_model(None, with_envs.spec, with_envs.actions)
    make_constant(model.policy, 0.5)
    player: RandomFirst = remotely.local(RandomFirst, config, model, 5)

    player.env_steps = CONFIG.learn_from - 1
    drawn = player.sample().trajectory.action
    assert np.histogram(drawn, 4, (-1, 1))[0] == pytest.approx(200, rel=0.25)

    player.env_steps = CONFIG.learn_from
    drawn = player.sample().trajectory.action
    assert drawn.mean() == pytest.approx(np.tanh(0.5), abs=0.02)
    assert drawn.std() == pytest.approx(0.1, rel=0.1)


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local")
def test_a_vector_action_is_learnt_in_seconds_and_played_greedily(tmp_path: Path) -> None:
    result = td3.train(CONFIG, run=tmp_path / "run")
    assert "is reached" in result.ended, result

    greedy, noisy = (
        evaluation.evaluate(tmp_path / "run", 20, greedy=greedy, env=toys.Aim).mean
        for greedy in (True, False)
    )
    assert greedy > 0.8
    assert greedy > noisy


@pytest.mark.usefixtures("here")
def test_actors_in_processes_sample_while_the_learner_learns(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, actors=2, envs_per_actor=2, overlap=True, n_step=2)
    result = td3.train(config, run=tmp_path / "run")
    assert "is reached" in result.ended, result


@pytest.mark.usefixtures("local")
def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG, target=None, anneal_steps=320, prioritized_alpha=0.6, policy_delay=3
    )
    resumed = toys.assert_resumed_to_the_bit(td3.train, config, (192, 320), tmp_path)
    assert resumed.updates == (320 - CONFIG.learn_from) // 4  # of four times as many rows


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("changes", "model", "message"),
    [
        (
            {"env": toys.Guess},
            None,
            r"td3 needs continuous actions.* for Discrete\(n\) use sac, dqn",
        ),
        ({}, toys.with_a_memory, "critics have no memory, .* a recurrent model with dqn, a2c"),
        ({}, toys.network(1, 2), r"expected \(policy \[2, 1\], .* \(1 is the width of an action\)"),
    ],
)
def test_invalid_settings_environments_and_models_are_refused(
    changes: dict[str, Any], model: Any, message: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    with pytest.raises(TrainingError, match=message):
        td3.train(config, model, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("local")
def test_a_model_of_your_own_is_the_policy(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=None, total_steps=192)
    td3.train(config, toys.network(1, 1), run=tmp_path / "run")
    agent = load.load(tmp_path / "run", model=toys.network(1, 1), env=toys.Aim)
    assert isinstance(agent.model, PolicyAndCritics)
    assert type(agent.model.policy) is type(toys.network(1, 1))
