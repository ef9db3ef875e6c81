"""A3C: workers that compute gradients of their own segments and share parameters by a rule.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3.  A worker plays T steps in
its environments by the parameters that it has, computes the gradient of A2C's losses on them
and pushes it; the shared RMSProp steps, its statistics shared like the parameters.  The worker's
loop over epochs and minibatches is `SegmentWork` (`learning/sharing.py`), and the server's is
`loop`, below; the rule decides what follows a push.

`sync` names the rule of that step: asynchronous is the paper's, synchronous makes it A2C with
the gradients computed by the actors; `semi_async`, `fasgd` and the others are in `sync/`.
With `clip_range` and several `epochs` the workers' losses are PPO's.

Differences from the paper:

    a worker steps several environments together, 8 steps each; a thread of theirs has one, and 5
    a gradient is the mean over a segment's rows, and its norm is clipped; theirs is the sum
    the value loss is halved and its coefficient is 0.5; theirs is not halved
    the entropy coefficient and the rate fall, to a tenth or so; theirs are 0.01, and a rate
        drawn at random that falls to 0
    pushes are applied one after another; their threads write over each other's
    RMSProp adds epsilon to the root, not below it, and the input is normalized
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
from remotely_rl.config import Common, fields
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.experience.batch import Transitions
from remotely_rl.functions import losses
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.learning import sharing
from remotely_rl.learning.learner import Losses, actor_critic_losses, annealed
from remotely_rl.runs import sampling
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import COUNT, NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings.  Their prose is the help of `remotely-rl train a3c`."""

    lacks: ClassVar[Mapping[str, str]] = fields.one_way_to_sample(
        "a3c samples in its workers, each with environments of its own"
    ) | fields.one_learner("a3c has several learners as it is: its workers, whose number is actors")

    actors: Annotated[int, "workers, each a client of the rule", COUNT] = 4
    envs_per_actor: Annotated[int, "environments that each worker steps together", COUNT] = 8
    rollout_steps: int = 8
    random_start: int = 250
    sync: fields.Sync = "asynchronous"
    accumulate: fields.Accumulate = 1

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 1.0
    normalize_values: fields.NormalizeValues = None
    normalize_advantage: fields.NormalizeAdvantage = False
    epochs: Annotated[int, "times that a worker goes over a segment", COUNT] = 1
    minibatches: Annotated[int, "parts of a segment, with a push each", COUNT] = 1
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

    paper: ClassVar[Mapping[str, Any]] = {
        "random_start": 0, "rollout_steps": 5, "entropy_coef": 0.01, "image_size": 84,
    }  # fmt: skip

    def unused(self) -> dict[str, str]:
        return super().unused() | sharing.unused(self)

    def check_run(self) -> None:
        """Makes a rule of one parameter, which raises for a wrong rule or optimizer."""
        sharing.make_rule(self, torch.zeros(1))


def compute_losses(
    policy: Tensor, value: Tensor, rows: Transitions, config: Config, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """The policy gradient, clipped if asked for; the value loss; the policy's entropy."""
    log_prob = actions.log_prob(policy, rows.action)
    if config.clip_range:
        gradient = losses.clipped_surrogate(
            log_prob - rows.old_log_prob, rows.advantage, config.clip_range
        )
    else:
        gradient = losses.policy_gradient(log_prob, rows.advantage)
    return actor_critic_losses(
        gradient, log_prob, policy, value, rows, actions, config.value_coef, entropy_coef
    )


def make_work(config: Config, model: nn.Module, seed: int) -> sharing.SegmentWork:
    """Makes what a worker computes with."""
    actor = remotely.local(Actor, config, model, seed)

    def losses_at(policy: Tensor, value: Tensor, rows: Transitions, progress: float) -> Losses:
        entropy_coef = annealed(config.entropy_coef, config.entropy_coef_end, progress)
        actions = actor.envs.actions
        return compute_losses(policy, value, rows, config, entropy_coef, actions)

    return sharing.SegmentWork(
        config, actor, losses_at, config.epochs, config.minibatches, config.normalize_advantage
    )


def loop(session: Session[Config]) -> None:
    """A seed does not repeat a run, because the order of pushes depends on timing.

    (With a synchronous rule it does.)
    """
    learner, workers = sampling.workers(session, make_work)
    while not session.over():
        attributes = session.learner.env_attributes
        broadcast = learner.broadcast(session.env_steps, session.progress, attributes)
        with session.spending("waiting"):
            pushed = workers.take(timeout_s=POLL_S, broadcast=broadcast)
        if pushed is None:
            session.tick()
            continue
        learner.record(pushed)
        report: sharing.Report = pushed.report
        session.tally.sampled(report.steps, report.episodes, report.seconds)
        session.learnt(report.metrics, [pushed.reply.staleness])


train = Train("a3c", Config, loop)
