"""APPO: PPO's loss on the trajectories of asynchronous actors.

Actors sample without waiting, as in IMPALA.  V-trace computes value targets and advantages with
the current network.  The loss is PPO's clipped surrogate with the ratio to the behaviour policy:
one ratio corrects both for stale actors and for the update's own epochs, and its clip bounds how
far the policy moves from the one that sampled the data.
(Petrenko et al. 2020, https://arxiv.org/abs/2006.11751, section 3; RLlib's APPO.)

Unlike V-trace's rho, by which IMPALA weights each advantage, the ratio is not truncated at 1: an
action that has become more likely counts for more.

Differences from Sample Factory (SF):

    V-trace by default (SF: GAE with the behaviour policy's values, here `v_trace=False`)
    actors keep one copy of the network for a whole trajectory (SF: policy workers, whose
        parameters may change in the middle of one)
    the ratio is clipped to [1 - 0.2, 1 + 0.2] (SF: [1 / 1.1, 1.1])
    an update has three epochs of four minibatches (SF: one step)
    target_kl steers the learning rate (SF: constant)
    no value clipping (SF: around the behaviour policy's values)

Several `learners` accumulate Adam steps and add them to shared parameters and moments, as in the
APPO of Stooke & Abbeel 2018 (https://arxiv.org/abs/1803.02811).  Their learners are synchronous
PPO, whose simulators wait; here each learner has asynchronous actors.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from remotely_rl.algorithms import ppo
from remotely_rl.config import Common, fields
from remotely_rl.config.common import STORE
from remotely_rl.experience.batch import Batch, DeviceTrajectory
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import returns
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.learning.learner import Learner, annealed, gae_batch, make_batch, to_device
from remotely_rl.runs import sampling
from remotely_rl.runs.training import Session, Train


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train appo`."""

    rollout_steps: int = 64
    actors: fields.FreeActors = 2
    sampling: fields.Sampling = "auto"
    arrivals: fields.Arrivals = False
    batch_trajectories: fields.BatchTrajectories = 2
    ahead: fields.Ahead = 1
    max_staleness: fields.MaxStaleness = None

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 1.0  # V-trace's clipped c already cuts stale traces
    v_trace: Annotated[
        bool,
        "V-trace targets, by the current network; no: GAE with the actors' values, which"
        " saves a forward pass",
    ] = True
    normalize_values: fields.NormalizeValues = None
    normalize_advantage: fields.NormalizeAdvantage = True
    epochs: fields.Epochs = 3
    minibatches: fields.Minibatches = 4
    clip_range: fields.ClipRange = 0.2
    value_coef: fields.ValueCoef = 0.5
    entropy_coef: fields.EntropyCoef = 0.01
    entropy_coef_end: fields.EntropyCoefEnd = 0.001
    max_grad_norm: fields.MaxGradNorm = 0.5
    learning_rate: fields.RateOrSteered = None
    learning_rate_end: fields.LearningRateEnd = None
    target_kl: fields.TargetKl = None

    lstm: fields.Lstm = 0
    log_std_start: fields.LogStdStart = INITIAL_LOG_STD
    free_log_std: fields.FreeLogStd = False
    learners: fields.Learners = 1
    steps_per_push: fields.StepsPerPush = 4
    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    learners_share: ClassVar[str] = STORE
    lacks: ClassVar[Mapping[str, str]] = {
        "learners_share": "appo's learners always share a store: their actors are asynchronous, so"
        " their updates cannot be in step; a2c, dqn, c51, qr_dqn and rainbow have the choice"
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        ppo.check_steering(self)

    def unused(self) -> dict[str, str]:
        why = {"steps_per_push": "there is one learner"} if self.learners == 1 else {}
        return super().unused() | why


def v_trace_batch(
    learner: Learner[Config], rollout: DeviceTrajectory, policy: Tensor, value: Tensor
) -> Batch:
    """Compute V-trace targets from the current network's outputs for a trajectory.

    The batch's ratios are to the behaviour policy.
    """
    log_prob = learner.actions.log_prob(policy[:-1], rollout.action)
    targets = returns.v_trace(
        log_prob - rollout.log_prob,
        rollout.reward,
        rollout.discount,
        learner.value_scale.denormalize(value),
        valid=rollout.valid,
        rho_bar_pg=None,  # the loss already has the ratio
        gae_lambda=learner.config.gae_lambda,
    )
    return make_batch(
        learner,
        rollout,
        targets,
        start_log_prob=log_prob,
        normalize_advantage=learner.config.normalize_advantage,
    )


def update(learner: Learner[Config], trajectory: Trajectory, progress: float) -> dict[str, float]:
    """Learn from a batch; return metrics.  `progress` (0 to 1) anneals coefficients.

    With one minibatch, the first epoch reuses V-trace's forward pass.
    """
    config, actions = learner.config, learner.actions
    learner.learning_rate.anneal(progress)
    entropy_coef = annealed(config.entropy_coef, config.entropy_coef_end, progress)

    steps = []
    if config.v_trace:
        whole = config.minibatches == 1
        rollout = to_device(learner, trajectory)
        with torch.set_grad_enabled(whole):
            policy, value = learner.unroll(rollout)
        batch = v_trace_batch(learner, rollout, policy.detach(), value.detach())
        if whole:
            policy, value = rollout.rows.select(policy), rollout.rows.select(value)
            rows = batch.transition_rows
            parts = ppo.compute_losses(policy, value, rows, config, entropy_coef, actions)
            steps.append(learner.step(parts))
    else:
        batch = gae_batch(learner, trajectory, normalize_advantage=config.normalize_advantage)

    for _ in range(1 if steps else 0, config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            parts = ppo.compute_losses(policy, value, rows, config, entropy_coef, actions)
            steps.append(learner.step(parts))
    return learner.end_update(steps, batch, config.epochs)


def loop(session: Session[Config]) -> None:
    """Train.  A seed does not repeat a run, because the order of trajectories depends on timing."""
    learner, config = session.learner, session.learner.config
    actors = sampling.stream(session)
    while not session.over():
        trajectory = session.gather(actors, config.batch_trajectories)
        if trajectory is None:
            continue
        staleness = (learner.version - trajectory.version).tolist()
        with session.spending("learning"):
            metrics = update(learner, trajectory, session.progress)
            actors.publish(learner.parameters())
        session.learnt(metrics, staleness)


train = Train("appo", Config, loop)
