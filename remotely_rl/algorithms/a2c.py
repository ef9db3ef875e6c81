"""A2C: short rounds sampled by all actors, one update per round, no experience used twice.

The synchronous form of A3C (Mnih et al. 2016, https://arxiv.org/abs/1602.01783), batched as
by Stooke & Abbeel 2018 (https://arxiv.org/abs/1803.02811): all actors step in lock-step,
`actors.begin(params)`, and the learner takes one step on what they sampled.

The learning rate is given for 16 environments.  With more, gradients are less noisy, and the
rate grows with the square root of their number (their section 4).  `random_start` first plays
random steps in each environment, so that a batch does not hold the same moment of every game.

Differences from the second paper:

    actors compute with copies of the network; theirs send observations to one GPU
    rollouts of 8 steps; theirs have 5
    Adam, with a rate that falls to a seventh; theirs is RMSProp at a constant rate
    the entropy coefficient falls from 0.004 to 0.001; theirs is 0.01
    an environment whose episode has ended is reset at once; theirs waits for the update
    truncated episodes bootstrap, and the input is normalized
    values are learnt in units of their own deviation where rewards are not clipped
"""

import dataclasses
import math
from pathlib import Path
from typing import Annotated

from torch import Tensor

from remotely_rl import networks
from remotely_rl.config import Arrivals, PolicyGradient
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.experience.batch import Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses, returns
from remotely_rl.learning.batches import make_batch, to_device
from remotely_rl.learning.learner import Learner, Losses
from remotely_rl.runs import sampling, training
from remotely_rl.settings import NOT_NEGATIVE

RATE_IS_FOR = 16  # environments


@dataclasses.dataclass(frozen=True)
class Config(PolicyGradient):
    """The settings.  Their prose is the help of `remotely-rl train a2c`."""

    arrivals: Arrivals = False
    rollout_steps: int = 8
    random_start: int = 250
    gae_lambda: float = 1.0
    normalize_advantage: bool = False
    # Advantages of Pong have a deviation of 0.15: 0.01 would keep the policy near chance.
    entropy_coef: float = 0.004
    anneal_steps: int = 3_000_000
    learning_rate: Annotated[
        float, "Adam's learning rate at the start, for 16 environments", NOT_NEGATIVE
    ] = 7e-4
    scale_rate: Annotated[
        bool, "scale the learning rates by the square root of the number of environments / 16"
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
    policy: Tensor, value: Tensor, rows: Transitions, config: Config, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """The policy gradient, the value loss, the policy's entropy."""
    log_prob = actions.log_prob(policy, rows.action)
    gradient = losses.policy_gradient(log_prob, rows.advantage)
    error = losses.squared_error(value, rows.value_target)
    entropy = actions.entropy(policy).mean()
    kl = losses.kl_estimate(log_prob - rows.start_log_prob)
    total = gradient + config.value_coef * error - entropy_coef * entropy
    return Losses(total, gradient, error, entropy, kl)


def update(learner: Learner[Config], trajectory: Trajectory, env_steps: int) -> dict[str, float]:
    """Take one step on a round; returns metrics.  `env_steps` so far set the annealed
    coefficients."""
    config = learner.config
    learner.learning_rate.anneal(env_steps)
    entropy_coef = config.entropy_coef_at(env_steps)

    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward, rollout.discount, rollout.value,
        valid=rollout.valid, gae_lambda=config.gae_lambda,
    )  # fmt: skip
    batch = make_batch(learner, rollout, targets)

    policy, value, rows = learner.forward(batch)
    parts = compute_losses(policy, value, rows, config, entropy_coef, learner.actions)
    return learner.end_update([learner.step(parts)], batch)


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    See `training.begin` for the arguments.  The same seed gives the same run, bit by
    bit, on one machine.
    """
    with training.begin("a2c", Config, config, model, run, resume, prepare=scaled) as session:
        learner, actors = session.learner, sampling.rounds(session)
        while not session.over():
            if actors.idle:
                actors.begin(learner.parameters())
            trajectory = session.collect(actors)
            if trajectory is None:
                continue
            with session.spending("learning"):
                metrics = update(learner, trajectory, session.env_steps)
            session.learnt(metrics, staleness=[0])
    return session.result
