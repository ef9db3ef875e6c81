"""PPO: a round of experience, gone over several times without moving the policy far.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.  All actors sample with the same
parameters.  Advantages are by GAE (Schulman et al. 2016).  Several epochs of minibatches move
the policy; the clip takes away the incentive to move an action's probability by more than
`clip_range`.

`target_kl` steers the learning rate: it rises if an update moves the policy little and falls if
it moves it far, so that no horizon has to be guessed.  The network's input is normalized by
statistics that travel with its parameters.  They change between rounds only, so that the
function that learns from a round is the one that acted in it.

Other differences from the paper:

    the clip is 0.2 throughout, as the paper's in MuJoCo; for Atari theirs falls from 0.1 to 0
    rounds are 32 games by 64 steps; theirs are 8 by 128, and 1 by 2048 in MuJoCo
    advantages are normalized over a round, and the gradient's norm is clipped
    the value loss is halved and its coefficient is 0.5; theirs is not halved and it is 1
    values are learnt in units of their own deviation where rewards are not clipped
    the entropy coefficient falls from 0.01 to 0.001; theirs is 0.01, and 0 in MuJoCo
    the network predicts the deviation of a continuous action; theirs is the same in every state
    truncated episodes bootstrap

With `overlap` the actors sample the next round while the learner learns from this one, by
parameters that are one update old: faster where actors and learner have a core each.  The clip
is then around the policy before the update, and each advantage is weighted by that policy's
ratio to the one that acted, up to RHO_BAR (the decoupled objective of Hilton et al. 2021,
https://arxiv.org/abs/2110.00641, with a bound).  A clip around the policy that acted, which is
an update behind, would leave each update half the room.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Protocol

from torch import Tensor

from remotely_rl import networks
from remotely_rl.config import Arrivals, SeveralEpochs
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.experience.batch import Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses, returns
from remotely_rl.learning.batches import make_batch, to_device
from remotely_rl.learning.learner import Learner, Losses
from remotely_rl.runs import sampling, training
from remotely_rl.settings import NOT_NEGATIVE

RHO_BAR = 2.0  # upper bound of an advantage's weight, with `overlap`


@dataclasses.dataclass(frozen=True)
class Config(SeveralEpochs):
    """The settings.  Their prose is the help of `remotely-rl train ppo`."""

    clip_range: Annotated[
        float, "clip the ratio of an action's probabilities to 1 - this and 1 + this", NOT_NEGATIVE
    ] = 0.2
    arrivals: Arrivals = False
    overlap: Annotated[bool, "sample the next round while learning from this one"] = False


class Coefficients(Protocol):
    """What the loss uses of a config; APPO has the same loss."""

    @property
    def clip_range(self) -> float: ...
    @property
    def value_coef(self) -> float: ...


def compute_losses(
    policy: Tensor, value: Tensor, rows: Transitions, config: Coefficients, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """Equation 9: the clipped surrogate, the value loss, the policy's entropy."""
    log_prob = actions.log_prob(policy, rows.action)
    surrogate = losses.clipped_surrogate(
        log_prob - rows.old_log_prob, rows.advantage, config.clip_range
    )
    error = losses.squared_error(value, rows.value_target)
    entropy = actions.entropy(policy).mean()
    kl = losses.kl_estimate(log_prob - rows.start_log_prob)
    total = surrogate + config.value_coef * error - entropy_coef * entropy
    return Losses(total, surrogate, error, entropy, kl)


def update(learner: Learner[Config], trajectory: Trajectory, env_steps: int) -> dict[str, float]:
    """Learn from a round; returns metrics.  `env_steps` so far set the annealed coefficients."""
    config = learner.config
    learner.learning_rate.anneal(env_steps)
    entropy_coef = config.entropy_coef_at(env_steps)

    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward, rollout.discount, rollout.value,
        valid=rollout.valid, gae_lambda=config.gae_lambda,
    )  # fmt: skip
    if learner.is_newer_than(trajectory):  # sampled while the update before was computed
        old_log_prob = learner.log_prob(rollout)
        rho = (old_log_prob - rollout.log_prob).exp().clamp(max=RHO_BAR)
        batch = make_batch(learner, rollout, targets, old_log_prob=old_log_prob, weight=rho)
    else:
        batch = make_batch(learner, rollout, targets)

    steps = []
    for _ in range(config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            parts = compute_losses(policy, value, rows, config, entropy_coef, learner.actions)
            steps.append(learner.step(parts))
    return learner.end_update(steps, batch, config.epochs)


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    See `training.begin` for the arguments.  The same seed gives the same run, bit by
    bit, on one machine, with `overlap` too.
    """
    with training.begin("ppo", Config, config, model, run, resume) as session:
        learner, actors = session.learner, sampling.rounds(session)
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
                metrics = update(learner, trajectory, session.env_steps)
            session.learnt(metrics, staleness)
    return session.result
