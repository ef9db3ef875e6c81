"""CrossQ: one pass for both kinds of inputs, no target networks, a delayed policy, and learning."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from remotely_rl import crossq
from remotely_rl.agents import evaluation
from remotely_rl.algorithms.crossq import BETAS, CrossLearner
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.errors import TrainingError
from remotely_rl.functions.distributions import squashed_sample
from remotely_rl.networks import batch_statistics, load_state, renorms_of
from tests.remotely_rl import toys
from tests.remotely_rl.algorithms.continuous import BOX, VECTOR, batch

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = crossq.Config(
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
    critic_hidden="32,32",
    device="cpu",
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.8,
    total_steps=2_500,
)


def learner(**changes: Any) -> CrossLearner:
    config = dataclasses.replace(CONFIG, **changes)
    torch.manual_seed(0)
    return CrossLearner(config, config.make_model(None, VECTOR, BOX), BOX)


def test_targets_come_from_the_pass_that_predicts() -> None:
    made, steps = learner(), batch(4)
    same = torch.Generator().manual_seed(CONFIG.seed)
    with torch.no_grad(), batch_statistics(renorms_of(other := learner().model.critics)):
        action, log_prob = squashed_sample(made.model(steps.next_obs)[0], same)
        both = other(torch.cat([steps.obs, steps.next_obs]), torch.cat([steps.action, action]))
    soft = both[:, 4:].min(0).values - 0.1 * log_prob
    expected = both[:, :4] - (steps.reward + 0.9 * soft)

    found = crossq.compute_errors(made, steps)

    torch.testing.assert_close(found, expected)
    # Apart, the batch would have other statistics, and the values would differ.
    with torch.no_grad(), batch_statistics(renorms_of(apart := learner().model.critics)):
        assert not torch.allclose(apart(steps.obs, steps.action), both[:, :4], atol=1e-3)


def test_targets_get_no_gradient() -> None:
    made, steps = learner(), batch(4)._replace(weight=torch.zeros(4))
    parts, _ = crossq.compute_losses(made, steps)
    parts.value.backward()  # type: ignore[no-untyped-call]
    assert all((p.grad is None or not p.grad.any()) for p in made.model.critics.parameters())


def test_the_policy_and_the_temperature_move_every_policy_delay_updates() -> None:
    made = learner(policy_delay=3)
    moved = []
    for _ in range(6):
        before = toys.weights(made.model.policy), made.model.log_temperature.item()
        critics = toys.weights(made.model.critics)
        crossq.update(made, batch(), 0)
        moved.append(
            (
                bool((toys.weights(made.model.policy) != before[0]).any()),
                made.model.log_temperature.item() != before[1],
            )
        )
        assert (toys.weights(made.model.critics) != critics).any()
    assert moved == [(False, False), (False, False), (True, True)] * 2


def test_acting_changes_no_statistics_and_learning_does() -> None:
    made = learner()
    layers = renorms_of(made.model)
    assert len(layers) == 6  # input and two layers, of the policy and of the critics
    made.outlook(batch().obs)
    assert not any(layer.batches.item() for layer in layers)
    for _ in range(3):
        crossq.update(made, batch(), 0)
    assert [layer.batches.item() for layer in layers] == [1, 1, 1, 3, 3, 3]


def test_actors_normalize_by_the_statistics_that_the_learner_has_sent() -> None:
    made, other = learner(), learner()
    for _ in range(30):
        crossq.update(made, batch(), 0)
    state = made.parameters().state

    load_state(other.model, state)
    assert other.model(batch().obs)[0].equal(made.model(batch().obs)[0])


def test_it_has_the_authors_optimizer() -> None:
    made = learner()
    (group,) = made.optimizer.param_groups
    assert group["betas"] == BETAS == (0.5, 0.999)
    assert crossq.Config().learning_rate == 1e-3
    assert crossq.Config.paper == {"critic_hidden": "2048,2048"}


def test_updates_lower_the_critics_error() -> None:
    made, steps = learner(learning_rate=3e-3), batch(64)._replace(discount=torch.zeros(64))
    errors = [float(np.mean(crossq.update(made, steps, 0).priority)) for _ in range(60)]
    assert errors[-1] < 0.5 * errors[0]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"tau": 0.1}, "no field 'tau'"),
        ({"critic_hidden": "wide"}, "units of each layer"),
    ],
)
def test_wrong_settings_say_what_is_wrong(given: dict[str, Any], match: str) -> None:
    with pytest.raises(TrainingError, match=match):
        crossq.Config(**given)


@pytest.mark.usefixtures("local")
def test_it_learns_to_aim_and_its_agent_does(tmp_path: Path) -> None:
    # One update a step, as published: with fewer, the seed decides whether it is above 0.8.
    config = dataclasses.replace(CONFIG, replay_ratio=64.0, target=0.9)
    result = crossq.train(config, run=tmp_path / "run")
    assert result.return_mean > 0.5
    played = evaluation.evaluate(tmp_path / "run", 20, True, env=toys.Aim)
    assert played.mean > 0.8


def test_discrete_actions_are_refused_in_favour_of_what_takes_them() -> None:
    with pytest.raises(TrainingError, match=r"crossq needs continuous.* Discrete\(n\) use sac"):
        CONFIG.make_model(None, VECTOR, Discrete(2))
