"""From a trajectory to a batch: onto the device, rewards clipped, advantages normalized.

rollout = to_device(learner, trajectory)
targets = returns.gae(rollout.reward, rollout.discount, rollout.value, ...)
batch = make_batch(learner, rollout, targets)
"""

from typing import Any

from torch import Tensor

from remotely_rl import networks, trees
from remotely_rl.experience.batch import Batch, DeviceTrajectory, RecurrentInput, Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import returns
from remotely_rl.functions.returns import Targets
from remotely_rl.learning.learner import Learner


def to_device(learner: Learner[Any], trajectory: Trajectory) -> DeviceTrajectory:
    """Copies a trajectory to the learner's device, clips its rewards and applies gamma.

    The observations are not counted into the model's statistics yet: until the update is
    over, the model is the one that acted.
    """

    tensor = learner.to_device
    return DeviceTrajectory(
        obs=trees.map_tree(tensor, trajectory.obs),
        action=tensor(trajectory.action),
        log_prob=tensor(trajectory.log_prob),
        reward=learner.reward_clipper.clip(tensor(trajectory.reward), trajectory),
        discount=learner.config.gamma * ~tensor(trajectory.terminated),
        valid=tensor(trajectory.valid),
        begins=tensor(trajectory.begins),
        value=learner.value_scale.denormalize(tensor(trajectory.value)),
        state=tensor(trajectory.state),
    )


def make_batch(
    learner: Learner[Any],
    rollout: DeviceTrajectory,
    targets: Targets,
    *,
    old_log_prob: Tensor | None = None,
    start_log_prob: Tensor | None = None,
    weight: Tensor | None = None,
) -> Batch:
    """What to learn from the rows that are experience.

    Probability ratios are to `old_log_prob` [T, B], by default the policy that acted.  Pass
    `start_log_prob` [T, B] where that is not the policy before the update.  Advantages are
    normalized if the config says so, then multiplied by `weight` [T, B].
    """
    valid = rollout.valid
    value, advantage = targets
    if learner.config.normalize_advantage:
        known = advantage[valid]
        advantage = (advantage - known.mean()) / (known.std(correction=0) + 1e-6)
    if weight is not None:
        advantage = advantage * weight
    if learner.config.normalizes_values:
        learner.value_scale.update(value[valid])
        value = learner.value_scale.normalize(value)
    old = rollout.log_prob if old_log_prob is None else old_log_prob
    start = old if start_log_prob is None else start_log_prob
    transitions = Transitions(rollout.action, old, advantage, value, start)
    if networks.is_recurrent(learner.model):
        recurrent = RecurrentInput(rollout.state, rollout.begins[:-1], valid)
        return Batch(trees.map_tree(lambda x: x[:-1], rollout.obs), transitions, recurrent)
    obs = trees.map_tree(lambda x: x[:-1][valid], rollout.obs)
    return Batch(obs, Transitions(*(part[valid] for part in transitions)))


def gae_batch(learner: Learner[Any], trajectory: Trajectory) -> Batch:
    """A batch by GAE, for the policy that acted or one hardly newer.

    Values are those that the actor predicted.
    """
    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward,
        rollout.discount,
        rollout.value,
        valid=rollout.valid,
        gae_lambda=learner.config.gae_lambda,
    )
    if not (learner.config.target_kl and learner.is_newer_than(trajectory)):
        return make_batch(learner, rollout, targets)
    return make_batch(learner, rollout, targets, start_log_prob=learner.log_prob(rollout))
