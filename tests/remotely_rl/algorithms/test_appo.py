"""APPO: one ratio corrects for stale actors and for epochs."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from remotely_rl import appo, ppo
from remotely_rl.environments.action_spaces import Discrete
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.learning.learner import Learner
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = appo.Config(
    env=toys.Guess,
    actors=2,
    envs_per_actor=4,
    rollout_steps=6,
    batch_trajectories=2,
    minibatches=2,
    learning_rate=0.01,
    anneal_steps=1000,
    learner_threads=1,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
)
ONCE = dataclasses.replace(
    CONFIG,
    epochs=1,
    minibatches=1,
    normalize_advantage=False,
    gae_lambda=1.0,
    target_kl=0.0,
    normalize_values=False,
)
COIN = Discrete(2)


def played(of: Learner[Any], **changes: Any) -> Trajectory:
    return toys.actor(of.config, of.model, **changes).sample().trajectory


def seen_by_the_loss(
    learner: Learner[Any], trajectory: Trajectory
) -> tuple[Tensor, Tensor, Transitions]:
    """The first three arguments of the loss in the first step: policy, value, rows."""
    seen: list[Any] = []
    compute_losses = ppo.compute_losses

    def spy(*given: Any) -> Any:
        seen.append(given[:3])
        return compute_losses(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "compute_losses", spy)
        appo.update(learner, trajectory, 0)
    policy, value, rows = seen[0]
    return policy, value, rows


@pytest.mark.parametrize("gae_lambda", [1.0, 0.9])
@pytest.mark.parametrize("normalize_advantage", [False, True])
def test_on_policy_the_update_is_that_of_ppo(gae_lambda: float, normalize_advantage: bool) -> None:
    config = dataclasses.replace(
        CONFIG,
        env=toys.Counting,
        minibatches=1,
        gae_lambda=gae_lambda,
        normalize_advantage=normalize_advantage,
    )
    ours = Learner(config, toys.network(1), COIN)
    theirs = Learner(toys.converted(config, ppo.Config), toys.network(1), COIN)
    for group in (*ours.optimizer.param_groups, *theirs.optimizer.param_groups):
        group["eps"] = 0.01  # or Adam magnifies the rounding of tiny gradients
    trajectory = played(ours)
    torch.manual_seed(1)
    numbers = appo.update(ours, trajectory, 0)
    torch.manual_seed(1)
    assert ppo.update(theirs, trajectory, 0) == pytest.approx(numbers, abs=1e-4)
    torch.testing.assert_close(
        toys.weights(ours.model), toys.weights(theirs.model), atol=1e-5, rtol=1e-4
    )


def test_the_ratio_is_to_the_behaviour_policy_and_advantages_have_no_rho() -> None:
    acted = Learner(ONCE, toys.network(), COIN)
    learner = Learner(ONCE, toys.network(seed=9), COIN)
    trajectory = played(acted)
    trajectory = dataclasses.replace(trajectory, log_prob=trajectory.log_prob - np.float32(1.0))
    policy, value, rows = seen_by_the_loss(learner, trajectory)
    valid = torch.from_numpy(trajectory.valid)
    assert torch.equal(rows.old_log_prob, torch.from_numpy(trajectory.log_prob)[valid])
    ratio = (COIN.log_prob(policy, rows.action) - rows.old_log_prob).exp()
    assert ratio.min() > 2  # about e: the new policy is almost the same
    assert torch.equal(rows.start_log_prob, COIN.log_prob(policy, rows.action).detach())
    # In a one-step episode the advantage is r - V, with the current V; rho is truncated at 1.
    reward = torch.from_numpy(trajectory.reward)[valid]
    torch.testing.assert_close(rows.advantage, reward - value)
    torch.testing.assert_close(rows.value_target, reward)


def test_without_v_trace_the_actors_values_are_used_without_a_forward_pass() -> None:
    config = dataclasses.replace(ONCE, v_trace=False)
    acted = Learner(config, toys.network(), COIN)
    learner = Learner(config, toys.network(seed=9), COIN)
    trajectory = played(acted)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Learner, "unroll")
        _, _, rows = seen_by_the_loss(learner, trajectory)
    valid = torch.from_numpy(trajectory.valid)
    reward = torch.from_numpy(trajectory.reward)[valid]
    value = torch.from_numpy(trajectory.value[:-1])[valid]
    torch.testing.assert_close(rows.advantage, reward - value)


def test_v_trace_truncates_the_value_target_of_a_rarer_action() -> None:
    learner = Learner(ONCE, toys.network(), COIN)
    trajectory = played(learner)
    rarer = dataclasses.replace(trajectory, log_prob=trajectory.log_prob + np.float32(math.log(4)))
    _, value, rows = seen_by_the_loss(learner, rarer)
    reward = torch.from_numpy(trajectory.reward)[torch.from_numpy(trajectory.valid)]
    torch.testing.assert_close(rows.value_target, value + 0.25 * (reward - value))  # rho is 1/4
    torch.testing.assert_close(rows.advantage, reward - value)


def test_appo_has_no_overlap_field() -> None:
    with pytest.raises(TrainingError, match="there is no field 'overlap'"):
        appo.Config(overlap=True)  # type: ignore[call-arg]
