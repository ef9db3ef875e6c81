"""A3C: workers that compute gradients on their own rollouts and share parameters by a sync rule.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3.  A worker plays T steps in
its environments with its copy of the parameters, computes the gradient of A2C's losses and
pushes it; the shared RMSProp takes a step.  RMSProp's statistics are shared like the parameters.
The worker's loop over epochs and minibatches is `SegmentWork` (`learning/sharing.py`), and the
server's is `loop`, below; the sync rule decides what follows a push.

`sync` names that rule: `asynchronous` is the paper's, `synchronous` makes it A2C with gradients
computed by the actors; `semi_async`, `fasgd` and the others are in `sync/`.
With `clip_range`, which several `epochs` need, the workers' losses are PPO's.

Differences from the paper:

    a worker steps several environments, 8 steps each (paper: one environment per thread, 5 steps)
    the gradient is the mean over the rollout, and its norm is clipped (paper: the sum)
    the value loss is halved and its coefficient is 0.5 (paper: not halved)
    the entropy coefficient and the learning rate are annealed to a quarter and a seventh (paper:
        0.01, and a rate drawn at random and annealed to 0)
    pushes are applied one after another (paper: threads overwrite each other's)
    RMSProp adds epsilon outside the square root, not inside, and observations are normalized
    truncated episodes bootstrap
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

import remotely
from remotely_rl.acting.actor import Actor
from remotely_rl.acting.crew import POLL_S
from remotely_rl.algorithms import a2c, ppo
from remotely_rl.config import Common, fields
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.experience.batch import Transitions
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.learning import sharing
from remotely_rl.learning.learner import Losses, annealed
from remotely_rl.runs import sampling
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import COUNT, NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train a3c`."""

    lacks: ClassVar[Mapping[str, str]] = fields.one_way_to_sample(
        "a3c samples in its workers, each with environments of its own"
    ) | fields.one_learner("a3c has a learner in each worker, and actors sets their number")

    actors: Annotated[int, "workers, each a client of the sync rule", COUNT] = 4
    envs_per_actor: Annotated[int, "environments that each worker steps together", COUNT] = 8
    rollout_steps: int = 8
    random_start: int = 250
    sync: fields.Sync = "asynchronous"
    accumulate: fields.Accumulate = 1

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 1.0
    normalize_values: fields.NormalizeValues = None
    normalize_advantage: fields.NormalizeAdvantage = False
    epochs: Annotated[int, "passes of a worker over each of its rollouts", COUNT] = 1
    minibatches: Annotated[int, "minibatches per epoch, each with a push", COUNT] = 1
    clip_range: fields.ClipRangeOrNone = 0.0
    value_coef: fields.ValueCoef = 0.5
    entropy_coef: fields.EntropyCoef = 0.004
    entropy_coef_end: fields.EntropyCoefEnd = 0.001
    max_grad_norm: fields.MaxGradNorm = 0.5
    optimizer: fields.Optimizer = "rmsprop"
    rmsprop_decay: fields.RmspropDecay = 0.99
    rmsprop_epsilon: fields.RmspropEpsilon = 1e-4
    learning_rate: Annotated[
        float, "the shared optimizer's learning rate at the start", NOT_NEGATIVE
    ] = 7e-4
    learning_rate_end: fields.LearningRateEnd = None
    horizon: ClassVar[int] = 3_000_000

    lstm: fields.Lstm = 0
    log_std_start: fields.LogStdStart = INITIAL_LOG_STD
    free_log_std: fields.FreeLogStd = False

    paper: ClassVar[Mapping[str, Any]] = {
        "random_start": 0,
        "rollout_steps": 5,
        "entropy_coef": 0.01,
        "image_size": 84,
    }

    def unused(self) -> dict[str, str]:
        return super().unused() | sharing.unused(self)

    def check_run(self) -> None:
        """Raise TrainingError for an unknown sync rule or optimizer: make one for a parameter."""
        sharing.make_rule(self, torch.zeros(1))


def compute_losses(
    policy: Tensor,
    value: Tensor,
    rows: Transitions,
    config: Config,
    entropy_coef: float,
    actions: Actions,
) -> Losses:
    """Compute the losses of A2C, or with `clip_range` those of PPO."""
    if config.clip_range:
        return ppo.compute_losses(policy, value, rows, config, entropy_coef, actions)
    return a2c.compute_losses(policy, value, rows, config, entropy_coef, actions)


def make_work(config: Config, model: nn.Module, seed: int) -> sharing.SegmentWork:
    """Make the actor and the loss of a worker."""
    actor = remotely.local(Actor, config, model, seed)

    def losses_at(
        policy: Tensor, value: Tensor, rows: Transitions, config: Config, progress: float
    ) -> Losses:
        entropy_coef = annealed(config.entropy_coef, config.entropy_coef_end, progress)
        actions = actor.envs.actions
        return compute_losses(policy, value, rows, config, entropy_coef, actions)

    return sharing.SegmentWork(config, actor, losses_at)


def loop(session: Session[Config]) -> None:
    """Train.  A seed does not repeat a run, because the order of pushes depends on timing.

    (With a synchronous rule it does.)
    """
    learner, workers = sampling.workers(session, make_work)
    while not session.over():
        broadcast = learner.broadcast(session.env_steps, session.progress)
        with session.spending("waiting"):
            pushed = workers.take(timeout_s=POLL_S, broadcast=broadcast)
        if pushed is None:
            session.tick()
            continue
        metrics = learner.record(pushed)
        report: sharing.WorkReport = pushed.report
        session.tally.sampled(report.steps, report.episodes, report.seconds)
        session.learnt(metrics, [pushed.reply.staleness])


train = Train("a3c", Config, loop)
