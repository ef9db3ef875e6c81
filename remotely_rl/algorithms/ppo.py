"""PPO: several epochs of clipped updates over each synchronous rollout.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.  All actors sample with the same
parameters, `batch_rows` steps in all, whatever their number: more actors make rounds faster, not
updates larger.  GAE computes the advantages (Schulman et al. 2016).  Several epochs of minibatches
move the policy; the clip removes the incentive to change an action's probability by more than
`clip_range`.

Unless you give a learning rate, `target_kl` steers it: the rate rises if an update moves the policy
little and falls if it moves it far, so you need not guess a horizon.  Observations are normalized
by running statistics that are sent with the parameters.  They change only between rounds, so the
learner normalizes a rollout exactly as its actors did.

Other differences from the paper:

    the clip is 0.2 throughout, as in the paper's MuJoCo runs (Atari: annealed from 0.1 to 0)
    a rollout is 32 environments by 64 steps (paper: 8 by 128, and 1 by 2048 in MuJoCo)
    advantages are normalized over the rollout, and the gradient's norm is clipped
    the value loss is halved and its coefficient is 0.5 (paper: not halved, 1)
    where rewards are not clipped, value targets are normalized
    the entropy coefficient is annealed from 0.01 to 0.001 (paper: 0.01, and 0 in MuJoCo)
    the standard deviation of continuous actions depends on the state (paper: it does not; that is
        `free_log_std`)
    truncated episodes bootstrap

With `overlap` the actors sample the next round while the learner learns from this one, with
parameters that are one update old: faster if actors and learner each have a core.  The clip is
then around the policy before the update, and each advantage is weighted by the ratio of that policy
to the behaviour policy, up to RHO_BAR (the decoupled objective of Hilton et al. 2021,
https://arxiv.org/abs/2110.00641, with a bound).  A clip around the behaviour policy, which is an
update old, would leave each update half the room.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Protocol

from torch import Tensor

from remotely_rl.config import Common, fields, target_kl_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Transitions
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
from remotely_rl.settings import COUNT

RHO_BAR = 2.0  # upper bound of the importance weight of an advantage, with `overlap`


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train ppo`."""

    batch_rows: Annotated[int, "steps of a round, over all environments", COUNT] = 2048
    rollout_steps: Annotated[
        int | None,
        "T, steps of each environment in a round; none: batch_rows / number of environments",
        COUNT,
    ] = None
    sampling: fields.Sampling = "auto"
    resets: fields.Resets = "at_once"
    arrivals: fields.Arrivals = False
    overlap: fields.Overlap = False

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 0.95
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
    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    lacks: ClassVar[Mapping[str, str]] = {
        "learners_share": "ppo's learners always share gradients: with a store, an update of"
        " several epochs would be stale before its end; a2c, dqn, c51, qr_dqn and rainbow can share"
        " a store"
    }
    paper: ClassVar[Mapping[str, Any]] = {"target_kl": 0.0, "image_size": 84}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steering(self)

    def resolved(self, name: str) -> Any:
        if name == "rollout_steps" and self.rollout_steps is None:
            # Rounded to nearest: 15 actors with 16 environments each take 9 steps, 2,160 rows.
            return max(1, round(self.batch_rows / (self.actors * self.rows_per_actor)))
        return super().resolved(name)

    def unused(self) -> dict[str, str]:
        given = {} if self.rollout_steps is None else {"batch_rows": "rollout_steps is given"}
        return super().unused() | given

    def remarks(self, is_own_model: bool = False, actions: Actions | None = None) -> list[str]:
        steps, width = self.resolved("rollout_steps"), self.actors * self.rows_per_actor
        each = "1 step" if steps == 1 else f"{steps:,} steps"
        rows = f"a round has {steps * width:,} rows: {each} of {width:,} environments"
        if self.rollout_steps is None and steps * width != self.batch_rows:
            rows += f"; batch_rows={self.batch_rows:,} is rounded to whole steps of all"
        return [rows, *super().remarks(is_own_model, actions)]


def check_steering(config: Any) -> None:
    """Raise TrainingError if `target_kl` would steer the rate of updates of a single step."""
    if target_kl_of(config) and config.epochs * config.minibatches == 1:
        raise TrainingError(
            "target_kl steers the learning rate by the KL divergence that an update reaches after"
            " its first step; with one step per update, set target_kl to 0 or give a learning_rate"
        )


class ClippedCoefficients(Protocol):
    """The fields of a Config that the loss reads; A3C, GA3C and APPO can have the same loss."""

    @property
    def clip_range(self) -> float: ...
    @property
    def value_coef(self) -> float: ...


def compute_losses(
    policy: Tensor,
    value: Tensor,
    rows: Transitions,
    config: ClippedCoefficients,
    entropy_coef: float,
    actions: Actions,
) -> Losses:
    """Compute equation 9: the clipped surrogate, the value loss and the entropy bonus."""
    log_prob = actions.log_prob(policy, rows.action)
    surrogate = losses.clipped_surrogate(
        log_prob - rows.old_log_prob, rows.advantage, config.clip_range
    )
    return actor_critic_losses(
        surrogate,
        log_prob,
        policy,
        value,
        rows,
        actions,
        config.value_coef,
        entropy_coef,
        config.clip_range,
    )


def update(learner: Learner[Config], trajectory: Trajectory, progress: float) -> dict[str, float]:
    """Learn from a rollout; return metrics.  `progress` (0 to 1) anneals coefficients."""
    config = learner.config
    learner.learning_rate.anneal(progress)
    entropy_coef = annealed(config.entropy_coef, config.entropy_coef_end, progress)

    old_log_prob = rho = None
    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward,
        rollout.discount,
        rollout.value,
        valid=rollout.valid,
        gae_lambda=config.gae_lambda,
    )
    if learner.is_newer_than(trajectory):  # sampled during the previous update
        old_log_prob = learner.log_prob(rollout)
        rho = (old_log_prob - rollout.log_prob).exp().clamp(max=RHO_BAR)
    batch = make_batch(
        learner,
        rollout,
        targets,
        old_log_prob=old_log_prob,
        weight=rho,
        normalize_advantage=config.normalize_advantage,
    )

    steps = []
    for _ in range(config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            parts = compute_losses(policy, value, rows, config, entropy_coef, learner.actions)
            steps.append(learner.step(parts, len(rows.action)))
    return learner.end_update(steps, batch, config.epochs)


def loop(session: Session[Config]) -> None:
    """Train.  A seed repeats the run, bit for bit, on one machine, even with `overlap`."""
    learner, config = session.learner, session.learner.config
    actors = sampling.rounds(session, arrivals=config.arrivals)
    while not session.over():
        if actors.idle:
            actors.begin(learner.parameters())
        trajectory = session.collect(actors)
        if trajectory is None:
            continue
        if config.overlap and not session.over():
            actors.begin(learner.parameters())
        with session.spending("learning"):
            staleness = [learner.version - int(v) for v in set(trajectory.version)]
            metrics = update(learner, trajectory, session.progress)
        session.learnt(metrics, staleness)


train = Train("ppo", Config, loop)
