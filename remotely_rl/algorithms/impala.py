"""IMPALA: actors that run free, and a learner that corrects for their being behind.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561; equation and section numbers are
theirs.  Actors sample on while the learner learns.  An update asks the newest parameters
about the whole batch, lets V-trace tell what each observation was worth and how much better
each action was than that (section 4), and takes a step for each minibatch.

How far behind the actors may be is a dial: `max_staleness` 0 makes rounds of it, no limit
lets them run free; the staleness of what is learnt from is always shown.

The paper uses everything once; in that way the policy hardly moves in the first million
steps of Pong.  Here an update may go over its batch several times (`epochs`, `minibatches`),
and over earlier ones too, from a small circular buffer (`replay_batches`, `replays`): to
V-trace that is only a policy that is a little older.  Rho says how far the newest policy is
from the one that acted; from there on, over the passes, `clip_range` bounds the step as PPO's does
(the decoupled objective of Hilton et al. 2022, https://arxiv.org/abs/2110.00641, equation 6).
A bound around the policy that acted, which is an update behind, leaves each update half
the room: on Pong it took twice the steps.

Where it differs from the paper, besides:

    losses are means and the gradient's norm is bounded by 0.5; theirs are sums, bounded by 40
    Adam at a rate that is steered; theirs is RMSProp at one that falls to 0
    advantages are standardised, and their rho is clipped at 2; theirs are as they are, at 1
    an update is of 2 trajectories of 16 games by 64 steps; theirs is of 32 games by 20
    entropy's weight falls from 0.01 to 0.001; for Atari theirs is 0.01
    a lost life ends an episode only with `life_loss_is_terminal`
    an episode that was truncated bootstraps, and the input is normalized
    values are learnt in units of their own deviation where rewards are not clipped

`epochs=1, minibatches=1, target_kl=0, rho_bar_pg=1, normalize_advantage=False` is nearest to the
paper's learner.
"""

import dataclasses
import math
from collections import deque
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from remotely_rl import networks
from remotely_rl.config import Streaming
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses, returns
from remotely_rl.learning.learner import Batch, Learner, Lesson, Losses, Rows
from remotely_rl.runs import training
from remotely_rl.settings import NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Streaming):
    """All that can be set.  The prose is the help of `remotely-rl train impala`."""

    replay_batches: Annotated[int, "batches that are kept to be met again", NOT_NEGATIVE] = 0
    replays: Annotated[int, "of those kept, how many are gone over in an update", NOT_NEGATIVE] = 1

    rho_bar: Annotated[float, "clip of V-trace's rho, for values", NOT_NEGATIVE] = 1.0
    c_bar: Annotated[float, "clip of V-trace's c, at most rho_bar", NOT_NEGATIVE] = 1.0
    # Above 1, or what is subtracted from all advantages would push the policy: only with
    # rho = pi / mu does a constant cancel out.
    rho_bar_pg: Annotated[float, "clip of V-trace's rho, for the policy", NOT_NEGATIVE] = 2.0
    clip_range: Annotated[
        float, "how far an update may move an action's probability; 0: no bound", NOT_NEGATIVE
    ] = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho_bar < self.c_bar:
            raise TrainingError(f"rho_bar ({self.rho_bar}) must be at least c_bar ({self.c_bar})")


def corrected(learner: Learner, batch: Batch, log_prob: Tensor, value: Tensor) -> Lesson:
    """V-trace (equation 1, section 4.2) by what the newest parameters say of a batch:
    log-probability of its actions [T, B], value of its observations [T + 1, B]."""
    config = learner.config
    assert isinstance(config, Config)
    target = returns.v_trace(
        log_prob - batch.log_prob,
        batch.reward,
        batch.discount,
        value,
        valid=batch.valid,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        rho_bar_pg=None,  # weighs them once they are scaled
        gae_lambda=config.gae_lambda,
    )
    rho = (log_prob - batch.log_prob).exp().clamp(max=config.rho_bar_pg)
    return learner.lesson(batch, log_prob, target, weight=rho)


def compute_losses(
    policy: Tensor, value: Tensor, rows: Rows, config: Config, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """Section 4.2's three parts; `rows.log_prob` is by the policy before the update, and the
    advantage has its rho."""
    log_prob = actions.log_prob(policy, rows.action)
    gradient = losses.clipped_surrogate(
        log_prob - rows.log_prob, rows.advantage, config.clip_range or math.inf
    )
    error = losses.squared_error(value, rows.target)
    entropy = actions.entropy(policy).mean()
    total = gradient + config.value_coef * error - entropy_coef * entropy
    return Losses(total, gradient, error, entropy, losses.kl_estimate(log_prob - rows.begun))


class Buffer:
    """The newest batches, to be met again: a circular buffer."""

    def __init__(self, config: Config):
        self._kept: deque[Batch] = deque(maxlen=config.replay_batches)
        self._replays = config.replays

    def with_earlier(self, batch: Batch, random: torch.Generator) -> list[Batch]:
        """A new batch and, at random, some of those kept; then it is kept too."""
        some = torch.randperm(len(self._kept), generator=random)[: self._replays].tolist()
        batches = [batch, *(self._kept[i] for i in some)]
        self._kept.append(batch)
        return batches


def update(
    learner: Learner, buffer: Buffer, trajectory: Trajectory, env_steps: int
) -> dict[str, float]:
    """Learns from a batch, all passes; `env_steps` so far set rate and entropy.

    Returns a row's numbers.
    """
    config = learner.config
    assert isinstance(config, Config)
    learner.follow(env_steps)
    batches = buffer.with_earlier(learner.take(trajectory), learner.random)
    return learner.learn_corrected(
        batches, corrected, compute_losses, config.epochs, config.minibatches
    )


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    `training.begin` says what the arguments are.  A seed does not repeat a run: which
    trajectory comes first is up to the machine.  (With `max_staleness=0` and as many
    `batch_trajectories` as actors it does.)
    """
    with training.begin("impala", Config, config, model, run, resume) as session:
        learner = session.learner
        assert isinstance(learner.config, Config)
        config = learner.config
        actors = session.stream(config.ahead, config.batch_trajectories, config.max_staleness)
        buffer = Buffer(config)
        while not session.over():
            trajectory = session.gather(actors, config.batch_trajectories)
            if trajectory is None:
                continue
            staleness = (learner.version - trajectory.version).tolist()
            with session.spending("learning"):
                numbers = update(learner, buffer, trajectory, session.env_steps)
                actors.publish(learner.parameters())
            session.learnt(numbers, staleness)
    return session.result
