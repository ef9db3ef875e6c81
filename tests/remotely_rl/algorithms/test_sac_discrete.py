"""SAC on discrete actions: targets and losses beside a slow oracle, masks, and learning."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from remotely_rl import sac
from remotely_rl.agents import evaluation
from remotely_rl.algorithms.sac import SoftLearner
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.functions.soft_policies import ENTROPY_OF_DISCRETE
from remotely_rl.networks import CriticsOfAll, MaskedPolicy
from remotely_rl.runs.replaying import Steps
from tests.remotely_rl import space_toys, toys
from tests.remotely_rl.algorithms.continuous import VECTOR, batch

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = sac.Config(
    env=toys.Guess,
    rollout_steps=16,
    replay_rows=10_000,
    learn_from=128,
    batch_size=64,
    replay_ratio=16.0,
    learning_rate=0.01,
    initial_temperature=0.3,
    target_entropy=0.2,
    hidden="32,32",
    device="cpu",
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.9,
    total_steps=4_000,
)
ROWS, COUNT = 5, 3
THREE = Discrete(COUNT)


def learner(**changes: Any) -> SoftLearner:
    config = dataclasses.replace(CONFIG, **changes)
    torch.manual_seed(0)
    return SoftLearner(config, config.make_model(None, VECTOR, THREE), THREE)


def steps() -> Steps:
    drawn = batch(ROWS)
    random = torch.Generator().manual_seed(2)
    action = torch.randint(COUNT, (ROWS,), generator=random)
    discount = torch.tensor([0.9, 0.0, 0.9, 0.9, 0.9])
    weight = torch.linspace(0.5, 1.0, ROWS)
    return drawn._replace(action=action, discount=discount, weight=weight)


class Oracle:
    """The losses of Christodoulou 2019, one row, critic and action at a time."""

    def __init__(self, made: SoftLearner, steps: Steps):
        temperature, target = math.exp(made.model.log_temperature.item()), 0.0
        with torch.no_grad():
            now = self.of(made.model.policy(steps.obs)[0])
            later = self.of(made.model.policy(steps.next_obs)[0])
            assert isinstance(made.model.critics, CriticsOfAll)
            q = self.of(made.model.critics(steps.obs))
            q_later = self.of(made.target(steps.next_obs, None))
        self.targets, errors, self.policy_loss, self.entropy = [], np.zeros((2, ROWS)), 0.0, 0.0
        for row in range(ROWS):
            value = 0.0
            probability = np.exp(later[row]) / np.exp(later[row]).sum()
            for action in range(COUNT):
                lower = min(q_later[0, row, action], q_later[1, row, action])
                soft = lower - temperature * math.log(probability[action])
                value += probability[action] * soft
            target = float(steps.reward[row]) + float(steps.discount[row]) * value
            self.targets.append(target)
            for critic in range(2):
                errors[critic, row] = q[critic, row, int(steps.action[row])] - target
            probability = np.exp(now[row]) / np.exp(now[row]).sum()
            for action in range(COUNT):
                lower = min(q[0, row, action], q[1, row, action])
                log = math.log(probability[action])
                self.policy_loss += probability[action] * (temperature * log - lower) / ROWS
                self.entropy -= probability[action] * log / ROWS
        self.priority = np.abs(errors).mean(0)
        self.critic_loss = float((0.5 * steps.weight.numpy() * errors**2).mean())
        self.temperature_loss = temperature * (self.entropy - CONFIG.target_entropy)  # type: ignore[operator]

    @staticmethod
    def of(tensor: torch.Tensor) -> NDArray[np.float64]:
        return tensor.double().numpy()


def scaled(made: SoftLearner) -> SoftLearner:
    """Make the networks' outputs differ more than those of new ones do."""
    with torch.no_grad():
        for part in (made.model, made.target):
            for parameter in part.parameters():
                if parameter.dim():
                    parameter.mul_(3)
    return made


def test_targets_and_losses_equal_a_slow_oracle() -> None:
    made, rows = scaled(learner()), steps()
    oracle = Oracle(made, rows)

    assert sac.compute_targets(made, rows).tolist() == pytest.approx(oracle.targets, rel=1e-4)
    parts, priority = sac.compute_losses(made, rows)

    assert parts.value.item() == pytest.approx(oracle.critic_loss, rel=1e-4)
    assert parts.policy.item() == pytest.approx(oracle.policy_loss, rel=1e-4)
    assert parts.entropy.item() == pytest.approx(oracle.entropy, rel=1e-4)
    assert priority.tolist() == pytest.approx(oracle.priority.tolist(), rel=1e-4)
    total = oracle.critic_loss + oracle.policy_loss + oracle.temperature_loss
    assert parts.total.item() == pytest.approx(total, rel=1e-4)


def test_each_network_gets_gradients_of_its_own_loss_only() -> None:
    made = learner()
    parts, _ = sac.compute_losses(made, steps())
    model = made.model
    for loss, owner in ((parts.policy, model.policy), (parts.value, model.critics)):
        everything = list(model.parameters())
        found = torch.autograd.grad(loss, everything, retain_graph=True, allow_unused=True)
        gradients: list[Tensor | None] = list(found)
        pairs = zip(everything, gradients, strict=True)
        moved = {id(parameter) for parameter, gradient in pairs if gradient is not None}
        assert moved == {id(parameter) for parameter in owner.parameters()}


def test_the_policy_loss_favours_the_action_with_the_higher_value() -> None:
    made, rows = learner(initial_temperature=1e-6), steps()
    with torch.no_grad():
        made.model.critics.layers[-1].bias.copy_(torch.tensor([0.0, 5.0, 0.0]))  # type: ignore[operator]
    for _ in range(60):
        loss, _, _ = sac.policy_losses(made, rows.obs)
        made.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        made.optimizer.step()
    assert made.model(rows.obs)[0].softmax(-1)[:, 1].min() > 0.8


def test_an_update_with_masks_is_finite_and_gives_illegal_actions_no_value() -> None:
    spec = {"observation": VECTOR, "action_mask": ObservationLeaf((COUNT,), np.dtype(np.bool_))}
    torch.manual_seed(0)
    made = SoftLearner(CONFIG, CONFIG.make_model(None, spec, THREE), THREE)
    assert isinstance(made.model.policy, MaskedPolicy)
    mask = torch.ones(ROWS, COUNT, dtype=torch.bool)
    mask[:, 2] = False
    rows, ended = steps(), torch.zeros(ROWS, COUNT, dtype=torch.bool)
    ended[rows.discount > 0] = mask[rows.discount > 0]  # no action is legal after the end
    rows = rows._replace(
        obs={"observation": rows.obs, "action_mask": mask},
        next_obs={"observation": rows.next_obs, "action_mask": ended},
        action=rows.action % 2,
    )
    before = sac.compute_targets(made, rows)
    with torch.no_grad():
        made.target.layers[-1].bias[..., 2] += 1e6  # type: ignore[operator, index]
    assert sac.compute_targets(made, rows).equal(before)
    for _ in range(3):
        updated = sac.update(made, rows, 0)
    assert all(map(math.isfinite, updated.metrics.values()))
    assert 0 < updated.metrics["train/entropy"] <= math.log(2)
    usual = made.outlook(rows.obs).usual_entropy.item()
    assert usual == pytest.approx(ENTROPY_OF_DISCRETE * math.log(2))


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("local")
def test_a_choice_is_learnt_in_seconds_and_played_by_the_likeliest(tmp_path: Path) -> None:
    result = sac.train(CONFIG, run=tmp_path / "run")
    assert "is reached" in result.ended, result
    assert evaluation.evaluate(tmp_path / "run", 20, True, env=toys.Guess).mean == 1.0


@pytest.mark.usefixtures("local")
def test_a_task_that_needs_masks_is_learnt(tmp_path: Path) -> None:
    result = space_toys.train("sac", space_toys.MaskObserved, 1, tmp_path / "run")
    assert "is reached" in result.ended, result


@pytest.mark.usefixtures("local")
def test_a_resumed_run_repeats_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, target=None, anneal_steps=320, prioritized_alpha=0.6)
    toys.assert_resumed_to_the_bit(sac.train, config, (192, 320), tmp_path)
