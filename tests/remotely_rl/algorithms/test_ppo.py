"""PPO: hand-worked losses, the update, learning and repeated runs."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from remotely_rl import a2c, ppo
from remotely_rl.environments.action_spaces import Actions, Continuous, Discrete, MultiDiscrete
from remotely_rl.experience.batch import Transitions
from remotely_rl.learning.learner import Learner, to_device
from remotely_rl.runs import metrics
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = ppo.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=8,
    learning_rate=0.01,
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
)
COIN = Discrete(2)


def one_row(ratio: float, advantage: float) -> tuple[Tensor, Transitions]:
    """A policy whose action has `ratio` times its old probability."""
    policy = torch.tensor([[0.0, 0.0]], requires_grad=True)  # pi = (1/2, 1/2)
    before = torch.tensor([math.log(0.5 / ratio)])
    advantages, targets = torch.tensor([advantage]), torch.tensor([0.0])
    return policy, Transitions(
        torch.tensor([0]), before, advantages, targets, start_log_prob=before
    )


@pytest.mark.parametrize(
    ("actors", "steps", "rows"),
    # The same number of rows for any number of actors, to half a step of each environment.
    [(1, 128, 2048), (2, 64, 2048), (4, 32, 2048), (8, 16, 2048), (15, 9, 2160), (256, 1, 4096)],
)
def test_more_actors_make_rounds_shorter_not_larger(actors: int, steps: int, rows: int) -> None:
    config = ppo.Config(env=toys.Guess, actors=actors)
    reward = toys.actor(config, toys.network()).sample().trajectory.reward
    assert (reward.shape, actors * reward.size) == ((steps, 16), rows)
    each = f"{steps} step{'s' if steps > 1 else ''}"
    rounded = "" if rows == 2048 else "; batch_rows=2,048 is rounded to whole steps of all"
    said = f"a round has {rows:,} rows: {each} of {16 * actors:,} environments{rounded}"
    assert config.remarks()[0] == said


def test_given_rollout_steps_override_batch_rows() -> None:
    config = ppo.Config(env=toys.Guess, actors=8, rollout_steps=64, batch_rows=1000)
    assert len(toys.actor(config, toys.network()).sample().trajectory.reward) == 64
    said = "batch_rows=1000 has no effect: rollout_steps is given"
    assert said in config.remarks()
    assert said not in dataclasses.replace(config, rollout_steps=None).remarks()


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "pull"),
    [
        (1.5, 1.0, 1.2, 0.0),  # past the clip and winning: no pull
        (0.5, 1.0, 0.5, 0.25),  # ratio * A * (1 - pi)
        (1.5, -1.0, -1.5, -0.75),
        (0.5, -1.0, -0.8, 0.0),
        (1.0, 2.0, 2.0, 1.0),
    ],
)
def test_losses_and_gradients_match_hand_worked_numbers(
    ratio: float, advantage: float, gain: float, pull: float
) -> None:
    policy, rows = one_row(ratio, advantage)
    value = torch.tensor([3.0], requires_grad=True)
    config = dataclasses.replace(CONFIG, clip_range=0.2, value_coef=0.5)
    out = ppo.compute_losses(policy, value, rows, config, 0.0, COIN)
    assert -out.policy.item() == pytest.approx(gain)
    assert out.value.item() == pytest.approx(4.5)
    assert out.entropy.item() == pytest.approx(math.log(2))
    assert out.kl.item() == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)
    assert out.total.item() == pytest.approx(-gain + 0.5 * 4.5)
    of_policy, of_value = torch.autograd.grad(out.total, (policy, value))
    assert of_policy[0].tolist() == pytest.approx([-pull, pull])
    assert of_value.item() == pytest.approx(1.5)


@pytest.mark.parametrize(
    "actions",
    [COIN, MultiDiscrete((2, 3), (0, 0)), Continuous((-1.0,) * 2, (1.0,) * 2, (2,))],
    ids=["Discrete", "MultiDiscrete", "Continuous"],
)
def test_at_ratio_one_the_gradient_is_that_of_a2c(actions: Actions) -> None:
    torch.manual_seed(0)
    policy = torch.randn(50, actions.outputs, requires_grad=True)
    value = torch.randn(50, requires_grad=True)
    action = actions.sample(policy.detach())
    before = actions.log_prob(policy, action).detach()
    rows = Transitions(action, before, torch.randn(50), torch.randn(50), before)
    ours = ppo.compute_losses(policy, value, rows, CONFIG, 0.01, actions)
    theirs = a2c.compute_losses(policy, value, rows, a2c.Config(), 0.01, actions)
    torch.testing.assert_close(
        torch.autograd.grad(ours.total, (policy, value)),
        torch.autograd.grad(theirs.total, (policy, value)),
    )


def test_one_epoch_of_one_minibatch_is_the_update_of_a2c() -> None:
    same: dict[str, Any] = {
        "env": toys.Guess,
        "envs_per_actor": 4,
        "rollout_steps": 8,
        "normalize_advantage": False,
        "gae_lambda": 0.9,
        "learning_rate": 0.01,
    }
    ours = Learner(ppo.Config(epochs=1, minibatches=1, target_kl=0.0, **same), toys.network(), COIN)
    theirs = Learner(a2c.Config(rate_rule="none", **same), toys.network(), COIN)
    assert ours.learning_rate.end == theirs.learning_rate.end
    trajectory = toys.actor(ours.config, ours.model).sample().trajectory
    ppo.update(ours, trajectory, 0.5)
    a2c.update(theirs, trajectory, 0.5)
    # The same sums in another order: they differ by roundings of float32.
    torch.testing.assert_close(
        toys.weights(ours.model), toys.weights(theirs.model), rtol=1e-5, atol=1e-6
    )


def test_the_clip_limits_how_far_many_epochs_move_the_policy() -> None:
    # The clip bounds the objective of each row; this is its effect.
    def moved(clip: float) -> float:
        config = dataclasses.replace(
            CONFIG,
            epochs=60,
            minibatches=1,
            clip_range=clip,
            target_kl=0.0,
            normalize_advantage=False,
            normalize_values=False,
        )
        learner = Learner(config, toys.network(), COIN)
        trajectory = toys.actor(config, learner.model, rollout_steps=40).sample().trajectory
        return ppo.update(learner, trajectory, 0)["train/approx_kl"]

    assert moved(0.1) < 0.25
    assert moved(1000.0) > 5 * moved(0.1)


def test_an_update_takes_all_minibatches_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(dataclasses.replace(CONFIG, epochs=3, minibatches=2), toys.network(), COIN)
    trajectory = toys.actor(CONFIG, learner.model, rollout_steps=5).sample().trajectory
    sizes: list[int] = []
    compute_losses = ppo.compute_losses

    def spy(policy: Tensor, *rest: Any) -> Any:
        sizes.append(len(policy))
        return compute_losses(policy, *rest)

    monkeypatch.setattr(ppo, "compute_losses", spy)
    ppo.update(learner, trajectory, 0)
    assert len(sizes) == 6
    rows = trajectory.valid.sum()
    assert [sum(pair) for pair in zip(sizes[::2], sizes[1::2], strict=True)] == [rows] * 3
    assert learner.version == 1  # one update, of six steps


def test_approx_kl_is_that_of_the_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(dataclasses.replace(CONFIG, epochs=2, minibatches=3), toys.network(), COIN)
    kl = iter([8.0, 8.0, 8.0, 1.0, 2.0, 3.0])
    compute_losses = ppo.compute_losses
    monkeypatch.setattr(
        ppo,
        "compute_losses",
        lambda *given: compute_losses(*given)._replace(kl=torch.tensor(next(kl))),
    )
    trajectory = toys.actor(CONFIG, learner.model).sample().trajectory
    assert ppo.update(learner, trajectory, 0)["train/approx_kl"] == 2.0


def test_with_overlap_the_clip_is_around_the_current_policy_and_rho_weights_advantages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = dataclasses.replace(CONFIG, minibatches=1, normalize_advantage=False)
    trajectory = toys.actor(config, toys.network()).sample().trajectory
    seen: list[Transitions] = []
    compute_losses = ppo.compute_losses

    def spy(policy: Tensor, value: Tensor, rows: Transitions, *rest: Any) -> Any:
        seen.append(rows)
        return compute_losses(policy, value, rows, *rest)

    monkeypatch.setattr(ppo, "compute_losses", spy)
    for version in (0, 1):  # at 1, the trajectory is of version 0, from another network
        learner = Learner(config, toys.network(seed=9), COIN)
        learner.version = version
        ppo.update(learner, trajectory, 0)
    fresh, behind = seen[0], seen[config.epochs]
    learner = Learner(config, toys.network(seed=9), COIN)
    valid = torch.from_numpy(trajectory.valid)
    current = learner.log_prob(to_device(learner, trajectory))[valid]
    acted = torch.from_numpy(trajectory.log_prob)[valid]
    assert torch.equal(fresh.old_log_prob, acted)
    assert torch.equal(behind.old_log_prob, current)
    assert torch.equal(behind.start_log_prob, current)
    rho = (current - acted).exp().clamp(max=2)
    assert (rho - 1).abs().max() > 0.001
    torch.testing.assert_close(behind.advantage, fresh.advantage * rho)


def test_the_steered_learning_rate_is_a_metric() -> None:
    learner = Learner(dataclasses.replace(CONFIG, target_kl=1e-9), toys.network(), COIN)
    actor = toys.actor(CONFIG, learner.model)
    rates = [
        ppo.update(learner, actor.sample().trajectory, 0)["train/learning_rate"] for _ in range(3)
    ]
    assert rates == pytest.approx([0.01, 0.01 / 1.5, 0.01 / 1.5**2])


@pytest.mark.usefixtures("here")
def test_with_overlap_in_processes_a_seed_repeats_its_run_one_update_behind(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG, overlap=True, target=0.97, total_steps=8000, log_interval_s=0.1
    )
    results = [ppo.train(config, run=tmp_path / name) for name in ("one", "same")]
    assert all("is reached" in result.ended for result in results)
    assert results[0].updates == results[1].updates
    toys.assert_same_bits(tmp_path / "one", tmp_path / "same")
    stale = [row["train/staleness_max"] for row in metrics.read(tmp_path / "one" / "metrics.csv")]
    assert max(stale) == 1


@pytest.mark.usefixtures("local")
def test_a_round_of_resets_only_is_no_update(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, rollout_steps=1, total_steps=80, overlap=True)
    assert ppo.train(config, run=tmp_path / "run").updates == 10


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    "changes",
    [
        {"env": toys.Aim, "entropy_coef": 0.0, "entropy_coef_end": 0.0, "target": 0.8},
        {"env": toys.Remember, "lstm": 8, "rollout_steps": 6, "target": 0.9},
    ],
    ids=["a vector", "a memory"],
)
def test_small_problems_are_learnt_in_seconds(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, total_steps=20_000, **changes)
    assert "is reached" in ppo.train(config, run=tmp_path / "run").ended


@pytest.mark.usefixtures("local")
def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, env="CartPole-v1", normalize_values=True, anneal_steps=320)
    toys.assert_resumed_to_the_bit(ppo.train, config, (160, 320), tmp_path)
