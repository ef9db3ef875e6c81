"""Asynchronous n-step Q-learning, and its special cases: one-step Q-learning and SARSA.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithms 1, S1 and S2.  A worker plays T
steps epsilon-greedily with fixed parameters, and pushes one gradient for all of them.  The target
of a step is the sum of discounted rewards to the end of the rollout, plus a target network's value
of the last observation:

    n-step     the best action's value             gae_lambda 1
    one-step   the same, after each step           gae_lambda 0
    SARSA      the value of the action taken       on_policy

Each environment has its own epsilon, which falls from 1 to one of three values: some keep exploring
forever, so that workers see different states.  Reported returns are those of the environments that
explore least.  A worker's target network is the parameters it had when all workers' steps last
passed a multiple of `target_every` (the paper's is shared, and so may differ by pushes that were
in flight).

`sync` names the sync rule; see `a3c.py`, whose differences from the paper apply here too.  In
addition, epsilons fall over 200,000 steps (paper: a million, 4 million frames), an environment
keeps its final epsilon, and the network has dueling heads.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import remotely
from remotely_rl import networks
from remotely_rl.acting.actor import Actor, Rollout
from remotely_rl.acting.crew import POLL_S
from remotely_rl.acting.player import AgentOutput, Player
from remotely_rl.config import Common, fields
from remotely_rl.environments.action_spaces import Actions, check_is_discrete
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Transitions
from remotely_rl.functions import losses
from remotely_rl.functions.q_learning import (
    described,
    epsilon,
    epsilon_greedy,
    q_values,
    taken,
)
from remotely_rl.learning import sharing
from remotely_rl.learning.learner import ABSENT, Losses
from remotely_rl.runs import sampling
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import COUNT, LENGTH, NOT_NEGATIVE
from remotely_rl.trees import Tree

# Final epsilons, and the fraction of the environments that has each: section 8 of the paper.
EPSILONS = ((0.01, 0.3), (0.1, 0.4), (0.5, 0.3))


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train n_step_q`."""

    lacks: ClassVar[Mapping[str, str]] = fields.one_way_to_sample(
        "n_step_q samples in its workers, each with environments of its own"
    ) | fields.one_learner("n_step_q has a learner in each worker, and actors sets their number")

    actors: Annotated[int, "workers, each a client of the sync rule", COUNT] = 4
    envs_per_actor: Annotated[int, "environments that each worker steps together", COUNT] = 8
    rollout_steps: int = 8
    random_start: int = 250
    sync: fields.Sync = "asynchronous"
    accumulate: fields.Accumulate = 1

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 1.0
    explore_steps: Annotated[
        float, "steps, or fraction of total_steps, over which the epsilons fall from 1", LENGTH
    ] = 200_000
    target_every: Annotated[
        int, "environment steps between updates of the target network", COUNT
    ] = 10_000
    on_policy: Annotated[bool, "SARSA: bootstrap from the action taken, not from the best"] = False
    dueling: Annotated[bool, "dueling heads: a state value plus advantages of actions"] = True
    play_epsilon: fields.PlayEpsilon = 0.01
    max_grad_norm: fields.MaxGradNorm = 0.5
    optimizer: fields.Optimizer = "rmsprop"
    rmsprop_decay: fields.RmspropDecay = 0.99
    rmsprop_epsilon: fields.RmspropEpsilon = 1e-4
    learning_rate: Annotated[
        float, "the shared optimizer's learning rate at the start", NOT_NEGATIVE
    ] = 7e-4
    learning_rate_end: fields.LearningRateEnd = None
    horizon: ClassVar[int] = 3_000_000
    values_in_rewards: ClassVar[bool] = True

    paper: ClassVar[Mapping[str, Any]] = {
        "random_start": 0,
        "rollout_steps": 5,
        "dueling": False,
        "image_size": 84,
    }

    def unused(self) -> dict[str, str]:
        return super().unused() | sharing.unused(self)

    def check_run(self) -> None:
        """Raise TrainingError for an unknown sync rule or optimizer: make one for a parameter."""
        sharing.make_rule(self, torch.zeros(1))

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        check_is_discrete("n_step_q", actions)
        if networks.is_recurrent(model):
            raise TrainingError(
                "n_step_q keeps no recurrent state; to train an LSTM use a2c, ppo or impala"
            )

    @property
    def outputs_are(self) -> str:
        return described(self.dueling)

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """Sample the action of a trained agent that does not play greedily."""
        return epsilon_greedy(policy, self.play_epsilon, generator)


def finals(count: int, seed: int) -> Tensor:
    """Draw the final epsilons of `count` environments, in the proportions of EPSILONS."""
    random = np.random.default_rng(seed)
    ends = np.cumsum([share for _, share in EPSILONS])
    # Systematic sampling: equally spaced places, with one random offset.
    places = (np.arange(count) + random.random()) / count
    which = np.searchsorted(ends / ends[-1], places, side="right")
    return torch.tensor([EPSILONS[i][0] for i in which], dtype=torch.float32)


def compute_losses(policy: Tensor, value: Tensor, rows: Transitions, is_dueling: bool) -> Losses:
    """Compute the squared error of the value of the action taken."""
    q = q_values(policy, value, is_dueling)
    error = losses.squared_error(taken(q, rows.action), rows.value_target)
    return Losses(error, ABSENT, error.detach(), ABSENT, ABSENT)


class QActor(Actor):
    """Acts epsilon-greedily; the values that it records are its target network's."""

    config: Config

    def __init__(self, config: Config, model: nn.Module, seed: int):
        super().__init__(config, model, seed)
        self.target = copy.deepcopy(self.model)
        self.env_steps = 0
        self._target_updates = 0
        self.final = finals(config.envs_per_actor, seed)

    def sample(self, at_least: int = 0) -> Rollout:
        """Take T steps in each environment; update the target network first if it is due."""
        due = self.env_steps // self.config.target_every
        if due != self._target_updates:
            self._target_updates = due
            self.target.load_state_dict(self.model.state_dict())
        return super().sample(at_least)

    def counts(self, environment: int) -> bool:
        """Return whether an environment's returns are reported: only those that explore least."""
        return bool(self.final[environment] == self.final.min())

    @torch.inference_mode()
    def act(self, player: Player, obs: Tree, last: bool) -> AgentOutput:
        """Choose an action for each observation."""
        config, obs = self.config, self.tensors(obs)
        policy, value = self.model(obs)
        q = q_values(policy, value, config.dueling)
        epsilons = epsilon(self.final, self.env_steps, config.steps_of(config.explore_steps))
        epsilons = epsilons.repeat_interleave(config.agents_per_env)
        action = player.draw(epsilon_greedy, q, epsilons)
        policy, value = self.target(obs)
        q_target = q_values(policy, value, config.dueling)
        value = taken(q_target, action) if config.on_policy else q_target.max(-1).values
        return AgentOutput(action.numpy(), np.zeros(len(q), np.float32), value.numpy())


def make_work(config: Config, model: nn.Module, seed: int) -> sharing.SegmentWork:
    """Make the actor and the loss of a worker."""
    actor = remotely.local(QActor, config, model, seed)

    def losses_at(
        policy: Tensor, value: Tensor, rows: Transitions, config: Config, progress: float
    ) -> Losses:
        return compute_losses(policy, value, rows, config.dueling)

    return sharing.SegmentWork(config, actor, losses_at)


def loop(session: Session[Config]) -> None:
    """Train.  A seed does not repeat a run, because the order of pushes depends on timing.

    (With a synchronous rule it does.)
    """
    learner, workers = sampling.workers(session, make_work)
    config = session.learner.config
    final = torch.tensor(sum(end * share for end, share in EPSILONS))
    explore_steps = config.steps_of(config.explore_steps)
    session.tally.gauges.append(
        lambda: {"train/epsilon": float(epsilon(final, session.env_steps, explore_steps))}
    )
    while not session.over():
        broadcast = learner.broadcast(session.env_steps, session.progress)
        with session.spending("waiting"):
            pushed = workers.take(timeout_s=POLL_S, broadcast=broadcast)
        if pushed is None:
            session.tick()
            continue
        metrics = learner.record(pushed)
        report: sharing.WorkReport = pushed.report
        session.tally.sampled(report.steps, report.episodes, report.seconds)
        session.learnt(metrics, [pushed.reply.staleness])


train = Train("n_step_q", Config, loop)
