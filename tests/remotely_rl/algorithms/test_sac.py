"""SAC: hand-worked targets and losses, separate gradients, action bounds, and learning."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from remotely_rl import sac
from remotely_rl.agents import evaluation, load
from remotely_rl.algorithms.sac import SoftLearner
from remotely_rl.errors import TrainingError
from remotely_rl.functions.distributions import squashed_sample
from remotely_rl.networks import Critics, CriticsOfAll, SoftActorCritic
from remotely_rl.networks.policy_and_critics import StackedLinear
from remotely_rl.runs import metrics
from tests.remotely_rl import toys
from tests.remotely_rl.algorithms.continuous import BOX, VECTOR, batch
from tests.remotely_rl.space_toys import LENGTH, Numbers, Toy

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = sac.Config(
    env=toys.Aim,
    rollout_steps=16,
    replay_rows=10_000,
    learn_from=128,
    batch_size=64,
    replay_ratio=16.0,
    learning_rate=0.01,
    initial_temperature=0.1,
    target_entropy=-2.0,
    hidden="32,32",
    device="cpu",
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.8,
    total_steps=2_500,
)


def learner(**changes: Any) -> SoftLearner:
    config = dataclasses.replace(CONFIG, **changes)
    torch.manual_seed(0)
    return SoftLearner(config, config.make_model(None, VECTOR, BOX), BOX)


@torch.no_grad()
def make_constant(critics: Critics | CriticsOfAll, *values: float) -> None:
    """Make each critic return a constant value."""
    for parameter in critics.parameters():
        parameter.zero_()
    head = critics.layers[-1]
    assert isinstance(head, StackedLinear)
    head.bias.copy_(torch.tensor(values).view(-1, 1, 1))


def test_targets_are_soft_values_of_the_lower_critic() -> None:
    made = learner(initial_temperature=0.5)
    make_constant(made.target, 3.0, 5.0)
    steps = batch(2)._replace(reward=torch.tensor([1.0, 2.0]), discount=torch.tensor([0.9, 0.0]))
    same = torch.Generator().manual_seed(CONFIG.seed)
    with torch.no_grad():
        _, log_prob = squashed_sample(made.model(steps.next_obs)[0], same)

    found = sac.compute_targets(made, steps)

    assert found.tolist() == pytest.approx([1 + 0.9 * (3 - 0.5 * log_prob[0].item()), 2.0])


def test_the_critic_loss_is_weighted_and_priorities_are_mean_absolute_errors() -> None:
    made, steps = learner(), batch(2)
    steps = steps._replace(
        discount=torch.zeros(2), reward=torch.tensor([1.0, -1.0]), weight=torch.tensor([1.0, 0.5])
    )
    make_constant(made.model.critics, 2.0, 4.0)

    parts, priority = sac.compute_losses(made, steps)

    # Errors of 1 and 3 in the first row; of 3 and 5, with half the weight, in the second.
    assert parts.value.item() == pytest.approx((1 + 9 + 0.5 * (9 + 25)) / 4 / 2)
    assert priority.tolist() == pytest.approx([2.0, 4.0])


def test_each_network_gets_gradients_of_its_own_loss_only() -> None:
    made = learner(initial_temperature=0.5, target_entropy=-3.0)
    model = made.model
    critics, policy = list(model.critics.parameters()), list(model.policy.parameters())
    everything = [*critics, *policy, model.log_temperature]
    parts, _ = sac.compute_losses(made, batch())

    def gradients(loss: Tensor) -> list[Tensor | None]:
        return list(torch.autograd.grad(loss, everything, retain_graph=True, allow_unused=True))

    of_policy, of_critics, total = (
        gradients(loss) for loss in (parts.policy, parts.value, parts.total)
    )
    assert [one is not None for one in of_critics] == [True] * 6 + [False] * (len(policy) + 1)
    assert [one is not None for one in of_policy] == [False] * 6 + [True] * len(policy) + [False]
    for whole, part in zip(total[:-1], of_critics[:6] + of_policy[6:-1], strict=True):
        torch.testing.assert_close(whole, part)
    assert total[-1] is not None  # the temperature times how far the entropy is from its target
    assert total[-1].item() == pytest.approx(0.5 * (parts.entropy.item() + 3.0), rel=1e-5)


def test_updates_lower_the_critics_error_and_move_the_targets() -> None:
    made, steps = learner(tau=0.1, learning_rate=3e-3), batch()._replace(discount=torch.zeros(6))
    before = toys.weights(made.target)
    errors = [float(np.mean(sac.update(made, steps, 0).priority)) for _ in range(40)]
    assert errors[-1] < 0.5 * errors[0]
    assert (toys.weights(made.target) - before).abs().max() > 0
    assert made.version == 40


def test_target_entropy_defaults_to_minus_the_number_of_coordinates() -> None:
    outlook = (made := learner(target_entropy=None)).outlook(batch().obs)
    assert made.config.entropy_for(outlook) == -2.0
    assert learner(target_entropy=1.5).config.entropy_for(outlook) == 1.5


@pytest.mark.parametrize(
    ("fields", "first", "last"),
    [
        ({}, 0.01, 0.01),
        ({"learning_rate_end": 1e-4}, 0.01, 1e-4),
        ({"rate_rule": "linear"}, 0.005, 0.005),  # for batches of 64, not 128
        ({"rate_rule": "linear", "learning_rate_end": 1e-4}, 0.005, 5e-5),
    ],
    ids=str,
)
def test_the_learning_rate_is_constant_unless_an_end_is_given(
    fields: dict[str, Any], first: float, last: float
) -> None:
    made = learner(**fields)
    rates = [
        sac.update(made, batch(), progress).metrics["train/learning_rate"] for progress in (0, 1)
    ]
    assert rates == pytest.approx([first, last])


class Reach(Toy):
    """Two joints with different bounds, whose goals a dict of two values gives."""

    observation_space = spaces.Dict(
        {"side": spaces.Discrete(2), "far": spaces.Box(0, 1, (1,), np.float32)}
    )
    action_space = spaces.Dict(
        {
            "arm": spaces.Box(-2, 2, (1,), np.float32),
            "hand": spaces.Tuple([spaces.Box(0, 10, (2,), np.float32)]),
        }
    )

    def draw(self) -> None:
        self.side, self.far = int(self.np_random.integers(2)), int(self.np_random.integers(2))

    def observe(self) -> Any:
        return {"side": self.side, "far": np.array([self.far], np.float32)}

    def judge(self, action: Any) -> tuple[float, bool]:
        missed = abs(float(action["arm"][0]) - (2 * self.side - 1))
        missed += abs(float(action["hand"][0][1]) - (2 + 6 * self.far)) / 5
        return 1 - 0.5 * missed, False


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local")
def test_a_vector_action_is_learnt_in_seconds_and_played_by_its_mean(tmp_path: Path) -> None:
    result = sac.train(CONFIG, run=tmp_path / "run")
    assert "is reached" in result.ended, result

    played = [
        evaluation.evaluate(tmp_path / "run", 20, greedy, env=toys.Aim) for greedy in (True, False)
    ]
    assert played[0].mean > 0.8
    assert played[0].mean > played[1].mean

    row = metrics.read(tmp_path / "run" / "metrics.csv")[-1]
    assert 0 < row["train/temperature"] < 1


@pytest.mark.usefixtures("local")
def test_nested_actions_on_nested_observations_are_learnt(tmp_path: Path) -> None:
    config = dataclasses.replace(
        CONFIG, env=Reach, gamma=0.5, target=0.8 * LENGTH, target_entropy=None
    )
    result = sac.train(config, run=tmp_path / "run")
    assert "is reached" in result.ended, result


@pytest.mark.usefixtures("here")
def test_actors_in_processes_sample_while_the_learner_learns(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, actors=2, envs_per_actor=2, overlap=True)
    result = sac.train(config, run=tmp_path / "run")
    assert "is reached" in result.ended, result


@pytest.mark.usefixtures("local")
def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=None, anneal_steps=320, prioritized_alpha=0.6)
    resumed = toys.assert_resumed_to_the_bit(sac.train, config, (192, 320), tmp_path)
    assert resumed.updates == (320 - CONFIG.learn_from) // 4  # of four times as many rows


class Unbounded(toys.Aim):
    action_space = spaces.Box(-2, np.inf, (1,), np.float32)


class WithAButton(toys.Aim):
    action_space = spaces.Tuple([spaces.Box(-2, 2, (1,), np.float32), spaces.Discrete(2)])  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        return super().step(action[0])


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("changes", "model", "message"),
    [
        ({"env": Numbers}, None, r"sac needs Discrete\(n\), or continuous .*several choices"),
        ({"env": WithAButton}, None, "or for discrete and continuous actions together ppo"),
        ({"env": Unbounded}, None, r"from \[-2.0\] to \[inf\]: give the Box .* finite bounds"),
        ({}, toys.with_a_memory, "critics have no memory, .* a recurrent model with dqn, a2c"),
        ({"initial_temperature": 0.0}, None, "initial_temperature must be more than 0"),
    ],
)
def test_invalid_settings_environments_and_models_are_refused(
    changes: dict[str, Any], model: Any, message: str, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    with pytest.raises(TrainingError, match=message):
        sac.train(config, model, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("local")
def test_a_model_of_your_own_is_the_policy(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=None, total_steps=192)
    sac.train(config, toys.network(1, 2), run=tmp_path / "run")
    agent = load.load(tmp_path / "run", model=toys.network(1, 2), env=toys.Aim)
    assert isinstance(agent.model, SoftActorCritic)
    assert type(agent.model.policy) is type(toys.network(1, 2))
