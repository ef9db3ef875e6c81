"""APPO: PPO's loss on the experience of actors that never wait.

Actors run free, as in IMPALA.  Value targets and advantages are V-trace's, by the current
network; the loss is PPO's clipped surrogate, whose ratio is to the policy that acted.  So one
ratio corrects both for the actors' older policies and for the update's own epochs, and its
clip bounds how far the policy moves from where the data came from.
(Petrenko et al. 2020, https://arxiv.org/abs/2006.11751, section 3; RLlib's APPO.)

Where IMPALA weights each advantage by V-trace's rho, the ratio here is not cut off at 1: an
action that has become more likely since counts for more.

Differences from Sample Factory:

    values are V-trace's by default; theirs are GAE's by the model that acted, as here with
        `v_trace=False`
    an actor computes with a copy of the network that stays the same for a trajectory; theirs
        ask policy workers, whose parameters may change in the middle of one
    the ratio is clipped to 1 - 0.2 and 1 + 0.2; theirs to 1 / 1.1 and 1.1
    an update has three epochs of four minibatches; theirs is one step
    the learning rate is steered; theirs is constant
    values may move as far as they like; theirs are clipped around those of the acting model

The APPO of Stooke & Abbeel 2018 (https://arxiv.org/abs/1803.02811) is another algorithm:
several learners, each PPO with simulators of its own, that add up their steps of Adam in
shared parameters and moments.  Nearest to it here is `a3c` with `clip_range` and `epochs`.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from remotely_rl import networks
from remotely_rl.algorithms import ppo
from remotely_rl.config import Streaming
from remotely_rl.experience.batch import Batch, DeviceTrajectory
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import returns
from remotely_rl.learning.batches import gae_batch, make_batch, to_device
from remotely_rl.learning.learner import Learner
from remotely_rl.runs import sampling, training
from remotely_rl.settings import NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Streaming):
    """The settings.  Their prose is the help of `remotely-rl train appo`."""

    clip_range: Annotated[
        float, "clip the ratio of an action's probabilities to 1 - this and 1 + this", NOT_NEGATIVE
    ] = 0.2
    v_trace: Annotated[
        bool, "compute targets by the current network; no: by the one that acted, a pass less"
    ] = True


def v_trace_batch(
    learner: Learner[Config], rollout: DeviceTrajectory, policy: Tensor, value: Tensor
) -> Batch:
    """V-trace by what the current network makes of a trajectory, with ratios to the policy that
    acted."""
    log_prob = learner.actions.log_prob(policy[:-1], rollout.action)
    targets = returns.v_trace(
        log_prob - rollout.log_prob,
        rollout.reward,
        rollout.discount,
        learner.value_scale.denormalize(value),
        valid=rollout.valid,
        rho_bar_pg=None,  # the loss has a ratio of its own
        gae_lambda=learner.config.gae_lambda,
    )
    return make_batch(learner, rollout, targets, start_log_prob=log_prob)


def update(learner: Learner[Config], trajectory: Trajectory, env_steps: int) -> dict[str, float]:
    """Learn from a batch; returns metrics.  `env_steps` so far set the annealed coefficients.

    With one minibatch, the forward pass that V-trace needs serves the first epoch's gradient too.
    """
    config, actions = learner.config, learner.actions
    learner.learning_rate.anneal(env_steps)
    entropy_coef = config.entropy_coef_at(env_steps)

    steps = []
    if config.v_trace:
        whole = config.minibatches == 1
        rollout = to_device(learner, trajectory)
        with torch.set_grad_enabled(whole):
            policy, value = learner.unroll(rollout)
        batch = v_trace_batch(learner, rollout, policy.detach(), value.detach())
        if whole:
            policy, value = policy[:-1][rollout.valid], value[:-1][rollout.valid]
            rows = batch.valid_transitions
            parts = ppo.compute_losses(policy, value, rows, config, entropy_coef, actions)
            steps.append(learner.step(parts))
    else:
        batch = gae_batch(learner, trajectory)

    for _ in range(1 if steps else 0, config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            parts = ppo.compute_losses(policy, value, rows, config, entropy_coef, actions)
            steps.append(learner.step(parts))
    return learner.end_update(steps, batch, config.epochs)


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    See `training.begin` for the arguments.  A seed does not repeat a run, as in IMPALA.
    """
    with training.begin("appo", Config, config, model, run, resume) as session:
        learner, config = session.learner, session.learner.config
        actors = sampling.stream(session)
        while not session.over():
            trajectory = session.gather(actors, config.batch_trajectories)
            if trajectory is None:
                continue
            staleness = (learner.version - trajectory.version).tolist()
            with session.spending("learning"):
                metrics = update(learner, trajectory, session.env_steps)
                actors.publish(learner.parameters())
            session.learnt(metrics, staleness)
    return session.result
