"""IMPALA: asynchronous actors, and a learner that corrects for their stale policies by V-trace.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561; equation and section numbers are
theirs.  Actors keep sampling while the learner learns.  An update first runs the current network
on the whole batch, from which V-trace computes value targets and advantages (section 4), then
takes an optimizer step for each minibatch.

`max_staleness` limits how many updates the actors may be behind: 0 makes rounds synchronous, none
sets no limit.  The staleness of the experience is always reported.

The paper uses each transition once.  On Pong the policy then hardly moves in the first million
steps.  Here an update may make several epochs over its batch (`epochs`, `minibatches`).  Rho
corrects from the behaviour policy to the policy before the update; from there on, `clip_range`
bounds the epochs as in PPO (the decoupled objective of Hilton et al. 2022,
https://arxiv.org/abs/2110.00641, equation 6).  A clip around the behaviour policy, which is an
update old, leaves each update half the room: on Pong it took twice the steps.

Other differences from the paper:

    losses are means, the gradient's norm is clipped at 0.5 (paper: sums, 40)
    Adam with a rate steered by target_kl (paper: RMSProp, annealed to 0)
    advantages are normalized, and their rho is clipped at 2 (paper: not normalized, 1)
    a batch is 2 trajectories of 16 environments by 64 steps (paper: 32 by 20)
    the entropy coefficient is annealed from 0.01 to 0.001 (paper, Atari: 0.01)
    a lost life ends an episode only with `life_loss_is_terminal`
    truncated episodes bootstrap, and observations are normalized
    where rewards are not clipped, value targets are normalized

`epochs=1, minibatches=1, target_kl=0, rho_bar_pg=1, normalize_advantage=False` is closest to the
paper's learner.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from remotely_rl.algorithms import ppo
from remotely_rl.config import Common, fields
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Batch, DeviceTrajectory, Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses, returns
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.learning.learner import (
    Learner,
    Losses,
    actor_critic_losses,
    annealed,
    make_batch,
    to_device,
)
from remotely_rl.runs import sampling
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train impala`."""

    lacks: ClassVar[Mapping[str, str]] = fields.one_learner(
        "impala has one learner: its actors are asynchronous, so the updates of several learners"
        " could not be in step"
    )

    rollout_steps: int = 64
    actors: fields.FreeActors = 2
    sampling: fields.Sampling = "auto"
    arrivals: fields.Arrivals = False
    batch_trajectories: fields.BatchTrajectories = 2
    ahead: fields.Ahead = 1
    max_staleness: fields.MaxStaleness = None

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 1.0  # V-trace's clipped c already cuts stale traces
    rho_bar: Annotated[float, "clip of V-trace's rho, for values", NOT_NEGATIVE] = 1.0
    c_bar: Annotated[float, "clip of V-trace's c, at most rho_bar", NOT_NEGATIVE] = 1.0
    # Above 1, because normalization subtracts a constant from all advantages, which has no effect
    # on the policy gradient only if rho = pi / mu is not clipped.
    rho_bar_pg: Annotated[float, "clip of V-trace's rho, for the policy", NOT_NEGATIVE] = 2.0
    clip_range: Annotated[
        float, "PPO's clip of the probability ratio, to [1 - this, 1 + this]; 0: off", NOT_NEGATIVE
    ] = 0.2
    normalize_values: fields.NormalizeValues = None
    normalize_advantage: fields.NormalizeAdvantage = True
    epochs: fields.Epochs = 3
    minibatches: fields.Minibatches = 4
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
    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 1,
        "minibatches": 1,
        "target_kl": 0.0,
        "rho_bar_pg": 1.0,
        "normalize_advantage": False,
        "image_size": 84,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        ppo.check_steering(self)
        if self.rho_bar < self.c_bar:
            raise TrainingError(f"rho_bar ({self.rho_bar}) must be at least c_bar ({self.c_bar})")


def v_trace_batch(
    learner: Learner[Config], rollout: DeviceTrajectory, policy: Tensor, value: Tensor
) -> Batch:
    """Compute V-trace targets (equation 1, section 4.2) from the current network's outputs.

    These are policy [T + 1, B, outputs] and value [T + 1, B] for the trajectory.
    """
    config = learner.config
    log_prob = learner.actions.log_prob(policy[:-1], rollout.action)
    log_rho = log_prob - rollout.log_prob
    targets = returns.v_trace(
        log_rho,
        rollout.reward,
        rollout.discount,
        learner.value_scale.denormalize(value),
        valid=rollout.valid,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        rho_bar_pg=None,  # rho weights the advantages after they are normalized, below
        gae_lambda=config.gae_lambda,
    )
    rho = log_rho.exp().clamp(max=config.rho_bar_pg)
    return make_batch(
        learner,
        rollout,
        targets,
        old_log_prob=log_prob,
        weight=rho,
        normalize_advantage=config.normalize_advantage,
    )


def compute_losses(
    policy: Tensor,
    value: Tensor,
    rows: Transitions,
    config: Config,
    entropy_coef: float,
    actions: Actions,
) -> Losses:
    """Compute the three losses of section 4.2.

    `rows.old_log_prob` is that of the policy before the update; the advantages include rho.
    """
    log_prob = actions.log_prob(policy, rows.action)
    clip = config.clip_range or math.inf
    gradient = losses.clipped_surrogate(log_prob - rows.old_log_prob, rows.advantage, clip)
    return actor_critic_losses(
        gradient, log_prob, policy, value, rows, actions, config.value_coef, entropy_coef, clip
    )


def update(learner: Learner[Config], trajectory: Trajectory, progress: float) -> dict[str, float]:
    """Learn from a batch; return metrics.  `progress` (0 to 1) anneals coefficients.

    With one minibatch, the first epoch reuses V-trace's forward pass.  With several, minibatches
    are shuffled transitions of all trajectories: those of a few whole sequences are correlated,
    and give worse steps.
    """
    config, actions = learner.config, learner.actions
    learner.learning_rate.anneal(progress)
    entropy_coef = annealed(config.entropy_coef, config.entropy_coef_end, progress)

    steps = []
    whole = config.minibatches == 1
    rollout = to_device(learner, trajectory)
    with torch.set_grad_enabled(whole):
        policy, value = learner.unroll(rollout)
    batch = v_trace_batch(learner, rollout, policy.detach(), value.detach())
    if whole:
        policy, value = rollout.rows.select(policy), rollout.rows.select(value)
        rows = batch.transition_rows
        parts = compute_losses(policy, value, rows, config, entropy_coef, actions)
        steps.append(learner.step(parts))
    for _ in range(1 if whole else 0, config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            parts = compute_losses(policy, value, rows, config, entropy_coef, actions)
            steps.append(learner.step(parts))
    return learner.end_update(steps, batch, config.epochs)


def loop(session: Session[Config]) -> None:
    """Train.  A seed does not repeat a run, because the order of trajectories depends on timing.

    (With `max_staleness=0` and as many `batch_trajectories` as actors it does.)
    """
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


train = Train("impala", Config, loop)
