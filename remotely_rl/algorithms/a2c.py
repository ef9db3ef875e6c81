"""A2C: rounds of a few steps by all actors, one update a round, nothing used twice.

The synchronous form of A3C (Mnih et al. 2016, https://arxiv.org/abs/1602.01783), batched as
by Stooke & Abbeel 2018 (https://arxiv.org/abs/1803.02811): all actors step in lock-step,
`actors.begin(params)`, and the learner takes one step on what they bring.

The learning rate holds for 16 environments; with more, gradients are less noisy, and it
grows with the square root of their number (their section 4).  `random_start` sets the
environments apart at first, so that a batch does not hold the same moment of every game.

Where it differs from the second paper:

    actors compute with copies of the network, where theirs ask one GPU
    pieces of 8 steps, where theirs have 5
    Adam, where theirs is RMSProp, and a rate that falls to a seventh; theirs is constant
    entropy's weight falls from 0.004 to 0.001; theirs is 0.01
    an environment whose episode has ended is reset at once; theirs waits for the update
    an episode that was truncated bootstraps, and the input is normalized
    values are learnt in units of their own deviation where rewards are not clipped
"""

import dataclasses
import math
from pathlib import Path
from typing import Annotated

from torch import Tensor

from remotely_rl import networks
from remotely_rl.config import OneEpoch
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses
from remotely_rl.learning.learner import Learner, Losses, Rows
from remotely_rl.runs import training
from remotely_rl.settings import NOT_NEGATIVE

RATE_IS_FOR = 16  # environments


@dataclasses.dataclass(frozen=True)
class Config(OneEpoch):
    """All that can be set.  The prose is the help of `remotely-rl train a2c`."""

    learning_rate: Annotated[float, "Adam's, at the start, for 16 environments", NOT_NEGATIVE] = (
        7e-4
    )
    scale_rate: Annotated[
        bool, "let the rates grow with the square root of the number of environments"
    ] = True


def scaled(config: Config) -> Config:
    """The config with the learning rates for its number of environments."""
    if not config.scale_rate:
        return config
    by = math.sqrt(config.actors * config.envs_per_actor / RATE_IS_FOR)
    return dataclasses.replace(
        config,
        learning_rate=config.learning_rate * by,
        learning_rate_end=config.learning_rate_ends_at * by,
    )


def compute_losses(
    policy: Tensor, value: Tensor, rows: Rows, config: Config, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """The policy gradient, the value's error, the policy's entropy."""
    log_prob = actions.log_prob(policy, rows.action)
    gradient = losses.policy_gradient(log_prob, rows.advantage)
    error = losses.squared_error(value, rows.target)
    entropy = actions.entropy(policy).mean()
    total = gradient + config.value_coef * error - entropy_coef * entropy
    return Losses(total, gradient, error, entropy, losses.kl_estimate(log_prob - rows.begun))


def update(learner: Learner, trajectory: Trajectory, env_steps: int) -> dict[str, float]:
    """One step on a round; `env_steps` so far set rate and entropy.  Returns a row's numbers."""
    learner.follow(env_steps)
    return learner.learn(learner.on_policy(trajectory), compute_losses)


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    `training.begin` says what the arguments are.  The same seed gives the same run, bit by
    bit, on one machine.
    """
    with training.begin("a2c", Config, config, model, run, resume, prepare=scaled) as session:
        learner, actors = session.learner, session.rounds()
        while not session.over():
            if actors.idle:
                actors.begin(learner.parameters())
            trajectory = session.collect(actors)
            if trajectory is None:
                continue
            with session.spending("learning"):
                numbers = update(learner, trajectory, session.env_steps)
            session.learnt(numbers, staleness=[0])
    return session.result
