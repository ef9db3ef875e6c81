"""APPO: PPO's loss on IMPALA's stream.

Actors run free, as in IMPALA; values and advantages are V-trace's, by the newest
parameters; the policy moves by PPO's clipped surrogate, whose ratio is to the policy that
acted.  So one ratio corrects for both, for the actors' being behind and for the update's
own passes, and its clip bounds how far the policy goes from where the data came from.
(Petrenko et al. 2020, https://arxiv.org/abs/2006.11751, section 3; RLlib's APPO.)

Where IMPALA weighs each advantage by V-trace's rho, the ratio here is not cut off at 1: an
action that has become likelier since counts for more.

Where it differs from Sample Factory:

    values are V-trace's by default; theirs are GAE's, found in acting, as with `v_trace=False`
    an actor computes with a copy of the network that stays the same for a trajectory; theirs
        ask policy workers, whose parameters may change in the middle of one
    the ratio is held within 1 - 0.2 and 1 + 0.2; theirs within 1 / 1.1 and 1.1
    an update makes three passes in four minibatches; theirs is one step
    the rate is steered; theirs is constant
    values may move as far as they like; theirs are clipped around those found in acting

The APPO of Stooke & Abbeel 2018 (https://arxiv.org/abs/1803.02811) is another algorithm:
several learners, each PPO with simulators of its own, that add up their steps of Adam in
shared parameters and moments.  Nearest to it here is `a3c` with `clip_range` and `epochs`.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

from torch import Tensor

from remotely_rl import networks
from remotely_rl.algorithms import ppo
from remotely_rl.config import Streaming
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import returns
from remotely_rl.learning.learner import Batch, Learner, Lesson
from remotely_rl.runs import training
from remotely_rl.settings import NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Streaming):
    """All that can be set.  The prose is the help of `remotely-rl train appo`."""

    clip_range: Annotated[
        float, "how far from the policy that acted an action may get, in parts", NOT_NEGATIVE
    ] = 0.2
    v_trace: Annotated[
        bool, "targets by the newest parameters; no: by those that acted, a question less"
    ] = True


def corrected(learner: Learner, batch: Batch, log_prob: Tensor, value: Tensor) -> Lesson:
    """V-trace by what the newest parameters say of a batch, to be learnt beside the policy that
    acted."""
    target = returns.v_trace(
        log_prob - batch.log_prob,
        batch.reward,
        batch.discount,
        value,
        valid=batch.valid,
        rho_bar_pg=None,
        gae_lambda=learner.config.gae_lambda,
    )
    return learner.lesson(batch, batch.log_prob, target, begun=log_prob)


def update(learner: Learner, trajectory: Trajectory, env_steps: int) -> dict[str, float]:
    """Learns from a batch, all passes; `env_steps` so far set rate and entropy.

    Returns a row's numbers.
    """
    config = learner.config
    assert isinstance(config, Config)
    learner.follow(env_steps)
    if not config.v_trace:
        lesson = learner.on_policy(trajectory)
        return learner.learn(lesson, ppo.compute_losses, config.epochs, config.minibatches)
    return learner.learn_corrected(
        [learner.take(trajectory)],
        corrected,
        ppo.compute_losses,
        config.epochs,
        config.minibatches,
    )


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    `training.begin` says what the arguments are.  A seed does not repeat a run, as in IMPALA.
    """
    with training.begin("appo", Config, config, model, run, resume) as session:
        learner = session.learner
        assert isinstance(learner.config, Config)
        config = learner.config
        actors = session.stream(config.ahead, config.batch_trajectories, config.max_staleness)
        while not session.over():
            trajectory = session.gather(actors, config.batch_trajectories)
            if trajectory is None:
                continue
            staleness = (learner.version - trajectory.version).tolist()
            with session.spending("learning"):
                numbers = update(learner, trajectory, session.env_steps)
                actors.publish(learner.parameters())
            session.learnt(numbers, staleness)
    return session.result
