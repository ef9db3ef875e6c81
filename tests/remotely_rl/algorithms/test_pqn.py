"""PQN: hand-worked losses, lambda returns of its own values, exploration, layer norm, learning."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import remotely
from remotely_rl import networks, pqn
from remotely_rl.agents import evaluation
from remotely_rl.algorithms.pqn import QActor, RolloutQLearner
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.networks import QNetwork
from remotely_rl.runs.training import make_learner
from tests.remotely_rl import space_toys, toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = pqn.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=8,
    explore_steps=1_000,
    learning_rate=0.01,
    minibatches=4,
    learner_threads=1,
    device="cpu",
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.95,
    total_steps=20_000,
)
COIN = Discrete(2)
SPEC = ObservationLeaf((2,), np.dtype(np.float32))
OF_COUNTING = ObservationLeaf((1,), np.dtype(np.float32))


def network(spec: Any = SPEC, seed: int = 0, **changes: Any) -> QNetwork:
    torch.manual_seed(seed)
    return dataclasses.replace(CONFIG, **changes).make_model(None, spec, COIN)


def actor(model: QNetwork, **changes: Any) -> QActor:
    return remotely.local(QActor, dataclasses.replace(CONFIG, **changes), model, 5)


def test_the_loss_is_half_the_squared_error_of_the_action_taken() -> None:
    q = torch.tensor([[1.0, 3.0], [2.0, 0.0]], requires_grad=True)
    zeros = torch.zeros(2)
    rows = Transitions(torch.tensor([1, 0]), zeros, zeros, torch.tensor([1.0, 5.0]), zeros)

    parts = pqn.compute_losses(q, rows)
    parts.total.backward()  # type: ignore[no-untyped-call]

    assert float(parts.total.detach()) == pytest.approx((2.0**2 + 3.0**2) / 2 / 2)
    assert q.grad is not None
    assert q.grad.tolist() == [[0.0, 1.0], [-1.5, 0.0]]


def targets_of(seen: Trajectory, model: QNetwork, config: pqn.Config) -> list[float]:
    """Return the value targets of an update's first minibatch, which is the whole batch."""
    learner, found = RolloutQLearner(config, model, COIN), []

    def spy(q: torch.Tensor, rows: Transitions) -> Any:
        found.append(learner.value_scale.denormalize(rows.value_target))
        return compute_losses(q, rows)

    compute_losses = pqn.compute_losses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pqn, "compute_losses", spy)
        pqn.update(learner, seen, 0)
    return [float(target) for target in found[0]]


def test_targets_are_lambda_returns_of_the_best_values_that_the_actor_saw() -> None:
    given: dict[str, Any] = {
        "envs_per_actor": 1,
        "rollout_steps": 3,
        "gamma": 0.5,
        "gae_lambda": 0.8,
        "normalize_values": False,
        "minibatches": 1,
    }
    long = functools.partial(toys.Counting, 9)
    model = network(OF_COUNTING, env=long)
    seen = actor(model, env=long, **given).sample().trajectory
    with torch.no_grad():
        best = model(torch.from_numpy(seen.obs[:, 0]))[0].max(-1).values.tolist()
    assert seen.value[:, 0].tolist() == pytest.approx(best, rel=1e-5)

    # Rewards of 10, 20 and 30, and no end: the last target bootstraps.
    third = 30 + 0.5 * best[3]
    second = 20 + 0.5 * (0.2 * best[2] + 0.8 * third)
    first = 10 + 0.5 * (0.2 * best[1] + 0.8 * second)
    config = dataclasses.replace(CONFIG, env=long, **given)
    assert targets_of(seen, model, config) == pytest.approx([first, second, third], rel=1e-5)


def test_epsilon_falls_from_one_over_the_steps_of_the_run() -> None:
    config = dataclasses.replace(CONFIG, epsilon=0.1, explore_steps=1000)
    assert [config.epsilon_at(steps) for steps in (0, 500, 1000, 9000)] == pytest.approx(
        [1.0, 0.55, 0.1, 0.1]
    )
    assert dataclasses.replace(config, explore_steps=0.5).epsilon_at(5000) == pytest.approx(0.55)


def test_an_actor_explores_by_the_steps_of_all_actors() -> None:
    model = network()
    with torch.no_grad():
        assert isinstance(model.model, networks.MLP)
        model.model.policy.weight.zero_()
        model.model.policy.bias.copy_(torch.tensor([0.0, 1.0]))
    player = actor(model, envs_per_actor=100, rollout_steps=10, epsilon=0.2)
    assert player.sample().trajectory.action.mean() == pytest.approx(0.5, abs=0.06)
    player.env_steps = 1_000
    assert player.sample().trajectory.action.mean() == pytest.approx(0.9, abs=0.04)


def test_masked_actions_are_never_taken_and_never_bootstrapped_from() -> None:
    config = dataclasses.replace(CONFIG, env=space_toys.Masked, envs_per_actor=8)
    model = make_learner(config, kind=RolloutQLearner).model
    for env_steps in (0, 1_000):
        player = remotely.local(QActor, config, model, 5)
        player.env_steps = env_steps
        seen = player.sample().trajectory
        mask = seen.obs["action_mask"]
        assert np.take_along_axis(mask[:-1], seen.action[..., None].astype(int), -1)[
            seen.valid
        ].all()
        with torch.no_grad():
            q, _ = model(
                {name: torch.from_numpy(x[:-1]).flatten(0, 1) for name, x in seen.obs.items()}
            )
        legal = torch.from_numpy(mask[:-1]).flatten(0, 1)
        best = torch.where(legal, q, -torch.inf).max(-1).values.view(seen.action.shape).numpy()
        np.testing.assert_allclose(seen.value[:-1][seen.valid], best[seen.valid], rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dtype", "norms"),
    [((2,), np.float32, 4), ((4, 42, 42), np.uint8, 3), ((4, 84, 84), np.uint8, 4)],
    ids=str,
)
def test_layer_norm_follows_every_layer_but_the_heads(
    shape: tuple[int, ...], dtype: Any, norms: int
) -> None:
    model = network(ObservationLeaf(shape, np.dtype(dtype))).model
    kinds = [type(part) for part in model.modules()]
    assert sum(kind in (nn.LayerNorm, nn.GroupNorm) for kind in kinds) == norms
    assert sum(kind in (nn.Linear, nn.Conv2d) for kind in kinds) == norms + 2  # and two heads


def test_a_model_of_your_own_is_left_as_it_is() -> None:
    made = CONFIG.make_model(toys.network(2), SPEC, COIN)
    assert [type(part) for part in made.model.modules()] == [
        type(part) for part in toys.network(2).modules()
    ]


def test_there_is_neither_a_target_network_nor_another_optimizer_than_radam() -> None:
    learner = RolloutQLearner(CONFIG, network(), COIN)
    assert isinstance(learner.optimizer, torch.optim.RAdam)
    assert not hasattr(learner, "target")


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local")
def test_it_learns_to_guess_and_its_agent_plays_greedily(tmp_path: Path) -> None:
    result = pqn.train(CONFIG, run=tmp_path / "run")
    assert "is reached" in result.ended, result
    assert evaluation.evaluate(tmp_path / "run", 20, True, env=toys.Guess).mean == 1.0


@pytest.mark.usefixtures("here")
def test_actors_in_processes_learn_as_well(tmp_path: Path) -> None:
    result = pqn.train(CONFIG, run=tmp_path / "run")
    assert "is reached" in result.ended, result


@pytest.mark.usefixtures("local")
def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=None, anneal_steps=320, learning_rate_end=1e-3)
    toys.assert_resumed_to_the_bit(pqn.train, config, (192, 320), tmp_path)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("env", "model", "message"),
    [
        (toys.Aim, None, r"pqn needs a Discrete\(n\) action space; for continuous actions use sac"),
        (space_toys.Numbers, None, "for several choices at once use ppo"),
        (toys.Guess, toys.with_a_memory, "pqn keeps no recurrent state"),
    ],
)
def test_actions_and_models_that_do_not_fit_are_refused(
    env: Any, model: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=message):
        pqn.train(dataclasses.replace(CONFIG, env=env), model, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
