"""A2C: short synchronous rounds, one update per round, each transition used once.

The synchronous form of A3C (Mnih et al. 2016, https://arxiv.org/abs/1602.01783), batched as
in Stooke & Abbeel 2018 (https://arxiv.org/abs/1803.02811): all actors step in lock-step
(`actors.begin(params)`), and the learner takes one optimizer step on their rollout.

The learning rate is given for 16 environments.  With more, gradients are less noisy, and
`rate_rule` scales the rate, by default with the square root of their number (section 4 of the
second paper).  `random_start` plays random steps in each environment first, so that a batch does
not hold the same moment of every game.

Differences from the second paper:

    actors compute actions with copies of the network (paper: one GPU computes them all)
    rollouts of 8 steps (paper: 5)
    Adam with a learning rate annealed to a seventh (paper: RMSProp, constant)
    the entropy coefficient is annealed from 0.004 to 0.001 (paper: 0.01)
    environments reset as soon as an episode ends (paper: while the learner learns,
        `resets="in_pause"`)
    truncated episodes bootstrap, and observations are normalized
    where rewards are not clipped, value targets are normalized
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Protocol

from torch import Tensor

from remotely_rl.config import Common, fields
from remotely_rl.environments.action_spaces import Actions
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
from remotely_rl.settings import NOT_NEGATIVE

RATE_IS_FOR = 16  # environments


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train a2c`."""

    rollout_steps: int = 8
    random_start: int = 250
    sampling: fields.Sampling = "auto"
    resets: fields.Resets = "at_once"
    arrivals: fields.Arrivals = False

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 1.0
    normalize_values: fields.NormalizeValues = None
    normalize_advantage: fields.NormalizeAdvantage = False
    value_coef: fields.ValueCoef = 0.5
    # Pong's advantages have a standard deviation of 0.15: 0.01 would keep the policy random.
    entropy_coef: fields.EntropyCoef = 0.004
    entropy_coef_end: fields.EntropyCoefEnd = 0.001
    max_grad_norm: fields.MaxGradNorm = 0.5
    learning_rate: Annotated[
        float, "Adam's learning rate at the start, for 16 environments", NOT_NEGATIVE
    ] = 7e-4
    learning_rate_end: fields.LearningRateEnd = None
    rate_rule: fields.RateRule = "sqrt"
    rate_follows: ClassVar[str] = f"the number of environments / {RATE_IS_FOR}"
    horizon: ClassVar[int] = 3_000_000

    lstm: fields.Lstm = 0
    log_std_start: fields.LogStdStart = INITIAL_LOG_STD
    free_log_std: fields.FreeLogStd = False
    learners: fields.Learners = 1
    learners_share: fields.LearnersShare = "gradients"
    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    paper: ClassVar[Mapping[str, Any]] = {
        "random_start": 0,
        "rollout_steps": 5,
        "entropy_coef": 0.01,
        "image_size": 84,
    }

    @property
    def rate_ratio(self) -> float:
        """The number of environments, relative to the number the learning rate is given for."""
        return self.actors * self.rows_per_actor / RATE_IS_FOR


class ValueCoefficient(Protocol):
    """The field of a Config that the loss reads; A3C has the same loss."""

    @property
    def value_coef(self) -> float: ...


def compute_losses(
    policy: Tensor,
    value: Tensor,
    rows: Transitions,
    config: ValueCoefficient,
    entropy_coef: float,
    actions: Actions,
) -> Losses:
    """Compute the policy gradient, the value loss and the entropy bonus."""
    log_prob = actions.log_prob(policy, rows.action)
    gradient = losses.policy_gradient(log_prob, rows.advantage)
    return actor_critic_losses(
        gradient, log_prob, policy, value, rows, actions, config.value_coef, entropy_coef
    )


def update(learner: Learner[Config], trajectory: Trajectory, progress: float) -> dict[str, float]:
    """Take one step on a rollout; return metrics.  `progress` (0 to 1) anneals coefficients."""
    config = learner.config
    learner.learning_rate.anneal(progress)
    entropy_coef = annealed(config.entropy_coef, config.entropy_coef_end, progress)

    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward,
        rollout.discount,
        rollout.value,
        valid=rollout.valid,
        gae_lambda=config.gae_lambda,
    )
    batch = make_batch(learner, rollout, targets, normalize_advantage=config.normalize_advantage)

    policy, value, rows = learner.forward(batch)
    parts = compute_losses(policy, value, rows, config, entropy_coef, learner.actions)
    return learner.end_update([learner.step(parts, len(rows.action))], batch)


def loop(session: Session[Config]) -> None:
    """Train.  A seed repeats the run, bit for bit, on one machine."""
    learner = session.learner
    actors = sampling.rounds(session, arrivals=learner.config.arrivals)
    while not session.over():
        if actors.idle:
            actors.begin(learner.parameters())
        trajectory = session.collect(actors)
        if trajectory is None:
            continue
        with session.spending("learning"):
            metrics = update(learner, trajectory, session.progress)
        session.learnt(metrics, staleness=[0])


train = Train("a2c", Config, loop)
