"""A3C: workers that learn each from its own segments, and share parameters as a rule says.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3.  A worker plays T steps in
its environments by the parameters that it has, computes the gradient of A2C's losses on them
and pushes it; the shared RMSProp steps, its statistics with the shared parameters.

`sync` names the rule of that step: asynchronous is the paper's, synchronous makes it A2C with
the gradients computed by the actors, `semi_async`, `fasgd` and the others are in `sync/`.
With `clip_range` and several `epochs` the workers' losses are PPO's.

Where it differs from the paper:

    a worker steps several environments together, 8 steps each, where a thread has one and 5
    a gradient is the mean over a segment's rows, and its norm is bounded; theirs is the sum
    the value's error is halved and weighs 0.5; theirs is squared as it is
    entropy's weight and the rate fall, to a tenth or so; theirs are 0.01, and a rate drawn
        at random that falls to 0
    pushes are taken one after another; their threads write over each other's
    RMSProp adds epsilon to the root, not below it, and the input is normalized
    an episode that was truncated bootstraps
"""

import dataclasses
from pathlib import Path
from typing import Annotated

from torch import Tensor, nn

import remotely
from remotely_rl import networks
from remotely_rl.acting.actor import Actor
from remotely_rl.config import Shared
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.functions import losses
from remotely_rl.learning import sharing
from remotely_rl.learning.learner import Losses, Rows
from remotely_rl.runs import training
from remotely_rl.runs.shared_training import share
from remotely_rl.settings import COUNT, NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Shared):
    """All that can be set.  The prose is the help of `remotely-rl train a3c`."""

    learning_rate: Annotated[float, "the shared optimizer's, at the start", NOT_NEGATIVE] = 7e-4
    epochs: Annotated[int, "times that a worker goes over a segment", COUNT] = 1
    minibatches: Annotated[int, "parts of a segment, with a push each", COUNT] = 1
    clip_range: Annotated[
        float, "how far passes may change an action's probability; 0: no bound", NOT_NEGATIVE
    ] = 0.0


def compute_losses(
    policy: Tensor, value: Tensor, rows: Rows, config: Config, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """The policy gradient, clipped if asked for; the value's error; the policy's entropy."""
    log_prob = actions.log_prob(policy, rows.action)
    if config.clip_range:
        gradient = losses.clipped_surrogate(
            log_prob - rows.log_prob, rows.advantage, config.clip_range
        )
    else:
        gradient = losses.policy_gradient(log_prob, rows.advantage)
    error = losses.squared_error(value, rows.target)
    entropy = actions.entropy(policy).mean()
    total = gradient + config.value_coef * error - entropy_coef * entropy
    return Losses(total, gradient, error, entropy, losses.kl_estimate(log_prob - rows.begun))


def make_work(config: Config, model: nn.Module, seed: int) -> sharing.SegmentWork:
    """What a worker computes with."""
    actor = remotely.local(Actor, config, model, seed)
    return sharing.SegmentWork(config, actor, compute_losses, config.epochs, config.minibatches)


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    `training.begin` says what the arguments are.  A seed does not repeat a run: who comes
    first is up to the machine.  (With a synchronous rule it does.)
    """
    with training.begin("a3c", Config, config, model, run, resume) as session:
        share(session, make_work)
    return session.result
