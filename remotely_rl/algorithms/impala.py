"""IMPALA: actors that never wait, and a learner that corrects for their older policies.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561; equation and section numbers are
theirs.  Actors keep sampling while the learner learns.  An update runs the current network on
the whole batch; V-trace computes from that the value targets, and how much better than
expected each action was (section 4).  Then it takes a step for each minibatch.

`max_staleness` limits how far the actors may be behind: 0 makes synchronous rounds, none lets
them run free.  The staleness of the experience is always reported.

The paper uses all experience once.  On Pong the policy then hardly moves in the first million
steps.  Here an update may go over its batch several times (`epochs`, `minibatches`), and over
earlier batches from a small circular buffer (`replay_batches`, `replays`): to V-trace these are
just a policy that is a little older.  Rho says how far the current policy is from the one that
acted; from there on, over the epochs, `clip_range` bounds the update as PPO's does (the
decoupled objective of Hilton et al. 2022, https://arxiv.org/abs/2110.00641, equation 6).
A clip around the policy that acted, which is an update behind, leaves each update half the
room: on Pong it took twice the steps.

Other differences from the paper:

    losses are means and the gradient's norm is clipped at 0.5; theirs are sums, clipped at 40
    Adam at a rate that is steered; theirs is RMSProp at one that falls to 0
    advantages are normalized, and their rho is clipped at 2; theirs are not, at 1
    an update has 2 trajectories of 16 games by 64 steps; theirs has 32 games by 20
    the entropy coefficient falls from 0.01 to 0.001; for Atari theirs is 0.01
    a lost life ends an episode only with `life_loss_is_terminal`
    truncated episodes bootstrap, and the input is normalized
    values are learnt in units of their own deviation where rewards are not clipped

`epochs=1, minibatches=1, target_kl=0, rho_bar_pg=1, normalize_advantage=False` is nearest to the
paper's learner.
"""

import dataclasses
import math
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from remotely_rl.algorithms import ppo
from remotely_rl.config import Common, fields
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Batch, DeviceTrajectory, Transitions, concatenate
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses, returns
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.learning.learner import (
    Learner,
    Losses,
    actor_critic_losses,
    annealed,
    make_batch,
    to_device,
)
from remotely_rl.runs import sampling
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings.  Their prose is the help of `remotely-rl train impala`."""

    lacks: ClassVar[Mapping[str, str]] = fields.one_learner(
        "impala has one learner, because its actors never wait: several learners would"
        " come to different numbers of updates"
    )

    rollout_steps: int = 64
    actors: fields.FreeActors = 2
    sampling: fields.Sampling = "auto"
    arrivals: fields.Arrivals = False
    batch_trajectories: fields.BatchTrajectories = 2
    ahead: fields.Ahead = 1
    max_staleness: fields.MaxStaleness = None
    replay_batches: Annotated[int, "earlier batches to keep for replay", NOT_NEGATIVE] = 0
    replays: Annotated[int, "kept batches that an update replays", NOT_NEGATIVE] = 1

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 1.0  # an older policy's clipped c cuts traces by itself
    rho_bar: Annotated[float, "clip of V-trace's rho, for values", NOT_NEGATIVE] = 1.0
    c_bar: Annotated[float, "clip of V-trace's c, at most rho_bar", NOT_NEGATIVE] = 1.0
    # Above 1, or what normalization subtracts from all advantages would push the policy: a
    # constant cancels out only with rho = pi / mu.
    rho_bar_pg: Annotated[float, "clip of V-trace's rho, for the policy", NOT_NEGATIVE] = 2.0
    clip_range: Annotated[
        float, "clip the ratio of an action's probabilities to 1 - this and 1 + this; 0: never",
        NOT_NEGATIVE,
    ] = 0.2  # fmt: skip
    normalize_values: fields.NormalizeValues = None
    normalize_advantage: fields.NormalizeAdvantage = True
    epochs: fields.Epochs = 3
    minibatches: fields.Minibatches = 4
    value_coef: fields.ValueCoef = 0.5
    entropy_coef: fields.EntropyCoef = 0.01
    entropy_coef_end: fields.EntropyCoefEnd = 0.001
    max_grad_norm: fields.MaxGradNorm = 0.5
    learning_rate: fields.RateOrSteered = None
    learning_rate_end: fields.LearningRateEnd = None
    target_kl: fields.TargetKl = None

    lstm: fields.Lstm = 0
    log_std_start: fields.LogStdStart = INITIAL_LOG_STD
    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 1, "minibatches": 1, "target_kl": 0.0, "rho_bar_pg": 1.0,
        "normalize_advantage": False, "image_size": 84,
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        ppo.check_steering(self)
        if self.rho_bar < self.c_bar:
            raise TrainingError(f"rho_bar ({self.rho_bar}) must be at least c_bar ({self.c_bar})")

    def unused(self) -> dict[str, str]:
        nothing = {} if self.replay_batches else {"replays": "replay_batches is 0"}
        return super().unused() | nothing


def v_trace_batch(
    learner: Learner[Config], rollout: DeviceTrajectory, policy: Tensor, value: Tensor
) -> Batch:
    """V-trace (equation 1, section 4.2), by what the current network makes of a trajectory:
    policy [T + 1, B, outputs] and value [T + 1, B]."""
    config = learner.config
    log_prob = learner.actions.log_prob(policy[:-1], rollout.action)
    log_rho = log_prob - rollout.log_prob
    targets = returns.v_trace(
        log_rho,
        rollout.reward,
        rollout.discount,
        learner.value_scale.denormalize(value),
        valid=rollout.valid,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        rho_bar_pg=None,  # it weights the advantages once they are normalized
        gae_lambda=config.gae_lambda,
    )
    rho = log_rho.exp().clamp(max=config.rho_bar_pg)
    return make_batch(
        learner, rollout, targets, old_log_prob=log_prob, weight=rho,
        normalize_advantage=config.normalize_advantage,
    )  # fmt: skip


def compute_losses(
    policy: Tensor, value: Tensor, rows: Transitions, config: Config, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """The three parts of section 4.2.  `rows.old_log_prob` is by the policy before the update,
    and the advantage includes its rho."""
    log_prob = actions.log_prob(policy, rows.action)
    clip = config.clip_range or math.inf
    gradient = losses.clipped_surrogate(log_prob - rows.old_log_prob, rows.advantage, clip)
    return actor_critic_losses(
        gradient, log_prob, policy, value, rows, actions, config.value_coef, entropy_coef, clip
    )


class ReplayBuffer:
    """A circular buffer of the newest trajectories."""

    def __init__(self, config: Config):
        self._kept: deque[DeviceTrajectory] = deque(maxlen=config.replay_batches)
        self._replays = config.replays

    def with_replays(
        self, rollout: DeviceTrajectory, generator: torch.Generator
    ) -> list[DeviceTrajectory]:
        """A new trajectory and, at random, some of those kept; then keeps the new one too."""
        some = torch.randperm(len(self._kept), generator=generator)[: self._replays].tolist()
        rollouts = [rollout, *(self._kept[i] for i in some)]
        self._kept.append(rollout)
        return rollouts


def update(
    learner: Learner[Config], buffer: ReplayBuffer, trajectory: Trajectory, progress: float
) -> dict[str, float]:
    """Learn from a batch; returns metrics.  `progress` sets the annealed coefficients.

    With one minibatch, the forward pass that V-trace needs serves the first epoch's gradient
    too.  With several, a minibatch is of rows from everywhere in all trajectories: steps on a
    few whole sequences each are led astray by what these have in common.
    """
    config, actions = learner.config, learner.actions
    learner.learning_rate.anneal(progress)
    entropy_coef = annealed(config.entropy_coef, config.entropy_coef_end, progress)

    steps, batches = [], []
    whole = config.minibatches == 1
    for rollout in buffer.with_replays(to_device(learner, trajectory), learner.generator):
        with torch.set_grad_enabled(whole):
            policy, value = learner.unroll(rollout)
        batch = v_trace_batch(learner, rollout, policy.detach(), value.detach())
        if whole:
            policy, value = policy[:-1][rollout.valid], value[:-1][rollout.valid]
            rows = batch.valid_transitions
            parts = compute_losses(policy, value, rows, config, entropy_coef, actions)
            steps.append(learner.step(parts))
        batches.append(batch)

    batch, count = concatenate(batches), config.minibatches * len(batches)
    for _ in range(1 if whole else 0, config.epochs):
        for minibatch in batch.minibatches(count, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            parts = compute_losses(policy, value, rows, config, entropy_coef, actions)
            steps.append(learner.step(parts))
    first = batches[0]  # replays were counted before
    return learner.end_update(steps, first, config.epochs)


def loop(session: Session[Config]) -> None:
    """A seed does not repeat a run, because the order of trajectories depends on timing.

    (With `max_staleness=0` and as many `batch_trajectories` as actors it does.)
    """
    learner, config = session.learner, session.learner.config
    actors = sampling.stream(session)
    buffer = ReplayBuffer(config)
    while not session.over():
        trajectory = session.gather(actors, config.batch_trajectories)
        if trajectory is None:
            continue
        staleness = (learner.version - trajectory.version).tolist()
        with session.spending("learning"):
            metrics = update(learner, buffer, trajectory, session.progress)
            actors.publish(learner.parameters())
        session.learnt(metrics, staleness)


train = Train("impala", Config, loop)
