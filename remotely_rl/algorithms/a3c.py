"""A3C: workers that compute gradients of their own segments and share parameters by a rule.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S3.  A worker plays T steps in
its environments by the parameters that it has, computes the gradient of A2C's losses on them
and pushes it; the shared RMSProp steps, its statistics shared like the parameters.  The worker's
loop over epochs and minibatches is `SegmentWork` (`learning/sharing.py`), and the server's is
the rule's.

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
from pathlib import Path
from typing import Annotated

from torch import Tensor, nn

import remotely
from remotely_rl import networks
from remotely_rl.acting.actor import Actor
from remotely_rl.config import Shared
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.experience.batch import Transitions
from remotely_rl.functions import losses
from remotely_rl.learning import sharing
from remotely_rl.learning.learner import Losses
from remotely_rl.runs import training
from remotely_rl.runs.shared_training import share
from remotely_rl.settings import COUNT, NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Shared):
    """The settings.  Their prose is the help of `remotely-rl train a3c`."""

    epochs: Annotated[int, "times that a worker goes over a segment", COUNT] = 1
    minibatches: Annotated[int, "parts of a segment, with a push each", COUNT] = 1
    clip_range: Annotated[
        float, "clip the ratio of an action's probabilities to 1 - this and 1 + this; 0: use the"
               " policy gradient", NOT_NEGATIVE
    ] = 0.0  # fmt: skip
    normalize_advantage: Annotated[
        bool, "scale advantages to mean 0 and standard deviation 1"
    ] = False  # fmt: skip
    entropy_coef: Annotated[float, "entropy coefficient at the start", NOT_NEGATIVE] = 0.004
    entropy_coef_end: Annotated[float, "entropy coefficient after anneal_steps", NOT_NEGATIVE] = (
        0.001
    )
    value_coef: Annotated[float, "value loss coefficient", NOT_NEGATIVE] = 0.5

    def entropy_coef_at(self, env_steps: int) -> float:
        done = self.progress(env_steps)
        return self.entropy_coef + done * (self.entropy_coef_end - self.entropy_coef)


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
    error = losses.squared_error(value, rows.value_target)
    entropy = actions.entropy(policy).mean()
    kl = losses.kl_estimate(log_prob - rows.start_log_prob)
    total = gradient + config.value_coef * error - entropy_coef * entropy
    return Losses(total, gradient, error, entropy, kl)


def make_work(config: Config, model: nn.Module, seed: int) -> sharing.SegmentWork:
    """Makes what a worker computes with."""
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

    See `training.begin` for the arguments.  A seed does not repeat a run, because the order of
    pushes depends on timing.  (With a synchronous rule it does.)
    """
    with training.begin("a3c", Config, config, model, run, resume) as session:
        share(session, make_work)
    return session.result
