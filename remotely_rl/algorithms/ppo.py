"""PPO: a round of experience, gone over several times, but never far from where it began.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.  All actors sample with the same
parameters; advantages are GAE's (Schulman et al. 2016); several passes in minibatches move
the policy, each action's probability by `clip_range` at most.

The learning rate is steered (`target_kl`): up if an update moves the policy little, down if
far, so that no horizon has to be guessed.  The network's input is normalized by statistics
that travel with its parameters; they change between rounds only, so that a round is learnt
from by the very function that acted in it.

Where it differs from the paper, besides these two:

    the clip is 0.2 throughout, as the paper's in MuJoCo; for Atari theirs falls from 0.1 to 0
    rounds are of 32 games by 64 steps; theirs are of 8 by 128, and of 1 by 2048 in MuJoCo
    advantages are standardised over a round, and the gradient's norm is bounded
    the value's error is halved and weighs 0.5; theirs is squared as it is and weighs 1
    values are learnt in units of their own deviation where rewards are not clipped
    entropy's weight falls from 0.01 to 0.001; theirs is 0.01, and 0 in MuJoCo
    the deviation of a continuous action is the network's; theirs is the same everywhere
    an episode that was truncated bootstraps

With `overlap` the next round is sampled while this one is learnt from, by parameters one
update old: faster where actors and learner each have a core.  The clip is around the policy
that the update begins with, and each advantage is weighed by that one's ratio to the policy
that acted: a clip around the latter, which is an update behind, would leave each update half
the room.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

from torch import Tensor

from remotely_rl import networks
from remotely_rl.config import SeveralEpochs
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses
from remotely_rl.learning.learner import Learner, Losses, Rows
from remotely_rl.runs import training
from remotely_rl.settings import NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(SeveralEpochs):
    """All that can be set.  The prose is the help of `remotely-rl train ppo`."""

    clip_range: Annotated[
        float, "how far an update may change an action's probability, in parts", NOT_NEGATIVE
    ] = 0.2
    overlap: Annotated[bool, "sample the next round while this one is learnt from"] = False


def compute_losses(
    policy: Tensor, value: Tensor, rows: Rows, config: Config, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """Equation 9: the clipped surrogate, the value's error, the policy's entropy."""
    log_prob = actions.log_prob(policy, rows.action)
    surrogate = losses.clipped_surrogate(
        log_prob - rows.log_prob, rows.advantage, config.clip_range
    )
    error = losses.squared_error(value, rows.target)
    entropy = actions.entropy(policy).mean()
    total = surrogate + config.value_coef * error - entropy_coef * entropy
    return Losses(total, surrogate, error, entropy, losses.kl_estimate(log_prob - rows.begun))


def update(learner: Learner, trajectory: Trajectory, env_steps: int) -> dict[str, float]:
    """Learns from a round; `env_steps` so far set rate and entropy.  Returns a row's numbers."""
    config = learner.config
    assert isinstance(config, Config)
    learner.follow(env_steps)
    lesson = learner.on_policy(trajectory, decoupled=True)
    return learner.learn(lesson, compute_losses, config.epochs, config.minibatches)


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    `training.begin` says what the arguments are.  The same seed gives the same run, bit by
    bit, on one machine, with `overlap` too.
    """
    with training.begin("ppo", Config, config, model, run, resume) as session:
        learner, actors = session.learner, session.rounds()
        assert isinstance(learner.config, Config)
        overlap = learner.config.overlap
        while not session.over():
            if actors.idle:
                actors.begin(learner.parameters())
            trajectory = session.collect(actors)
            if trajectory is None:
                continue
            if overlap and not session.over():
                actors.begin(learner.parameters())
            with session.spending("learning"):
                staleness = [learner.version - int(v) for v in set(trajectory.version)]
                numbers = update(learner, trajectory, session.env_steps)
            session.learnt(numbers, staleness)
    return session.result
