"""Asynchronous n-step Q-learning, and its special cases: one-step Q and SARSA.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithms 1, S1 and S2.  A worker plays T
steps by an epsilon-greedy policy of the parameters that it has, which do not change meanwhile,
and pushes one gradient for all of them.  The target of a step is the sum of rewards up to the
segment's end, plus a target network's value of the observation there:

    n-step     the best action's value             gae_lambda 1
    one-step   the same, one step after each       gae_lambda 0
    SARSA      the value of the action taken       on_policy

Each environment has an epsilon of its own, which falls from 1 to one of three values: some
explore forever, so that workers see different things.  Reported returns are those of the
environments that explore least.  A worker's target network is the parameters that it had when
all workers' steps last passed a multiple of `target_every`; the paper's is shared, and may
differ by what was in flight just then.

`sync` names the rule of the shared step; see `a3c.py`, whose differences from the paper apply
here too.  Besides, epsilons fall over 200,000 steps where theirs take a million (4 million
frames); an environment keeps the epsilon that it ends at; and the network has dueling heads.
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
from remotely_rl.environments.action_spaces import Actions, Discrete
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Transitions
from remotely_rl.functions import losses
from remotely_rl.functions.q_learning import epsilon, epsilon_greedy, q_values, taken
from remotely_rl.learning import sharing
from remotely_rl.learning.learner import ABSENT, Losses
from remotely_rl.runs import sampling
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import COUNT, LENGTH, NOT_NEGATIVE
from remotely_rl.trees import Tree

# What environments' epsilons fall to, and the share of them: section 8 of the paper.
EPSILONS = ((0.01, 0.3), (0.1, 0.4), (0.5, 0.3))


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings.  Their prose is the help of `remotely-rl train n_step_q`."""

    lacks: ClassVar[Mapping[str, str]] = fields.one_way_to_sample(
        "n_step_q samples in its workers, each with environments of its own"
    ) | fields.one_learner(
        "n_step_q has several learners as it is: its workers, whose number is actors"
    )

    actors: Annotated[int, "workers, each a client of the rule", COUNT] = 4
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
    target_every: Annotated[int, "environment steps between target networks", COUNT] = 10_000
    on_policy: Annotated[bool, "SARSA: bootstrap from the action taken, not from the best"] = False
    dueling: Annotated[bool, "add the value head to the advantages of the policy head"] = True
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
        "random_start": 0, "rollout_steps": 5, "dueling": False, "image_size": 84,
    }  # fmt: skip

    def unused(self) -> dict[str, str]:
        return super().unused() | sharing.unused(self)

    def check_run(self) -> None:
        """Makes a rule of one parameter, which raises for a wrong rule or optimizer."""
        sharing.make_rule(self, torch.zeros(1))

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        if not isinstance(actions, Discrete):
            raise TrainingError("n_step_q needs a Discrete(n) action space")
        if networks.is_recurrent(model):
            raise TrainingError(
                "n_step_q keeps no recurrent state; to train an LSTM use a2c, ppo or impala"
            )

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """How a trained agent plays when it is not to be greedy."""
        chances = torch.full(policy.shape[:1], self.play_epsilon)
        return epsilon_greedy(policy, chances, generator)


def finals(count: int, seed: int) -> Tensor:
    """Final epsilons of `count` environments: drawn, but in the proportions of EPSILONS."""
    random = np.random.default_rng(seed)
    ends = np.cumsum([share for _, share in EPSILONS])
    # A stratified draw: one at random of each of `count` equal parts.
    places = (np.arange(count) + random.random()) / count
    which = np.searchsorted(ends / ends[-1], places, side="right")
    return torch.tensor([EPSILONS[i][0] for i in which], dtype=torch.float32)


def compute_losses(policy: Tensor, value: Tensor, rows: Transitions, is_dueling: bool) -> Losses:
    """The squared error of the value of the action taken."""
    q = q_values(policy, value, is_dueling)
    error = losses.squared_error(taken(q, rows.action), rows.value_target)
    return Losses(error, ABSENT, error.detach(), ABSENT, ABSENT)


class QActor(Actor):
    """Acts epsilon-greedily; its values are those of its target network."""

    config: Config

    def __init__(self, config: Config, model: nn.Module, seed: int):
        super().__init__(config, model, seed)
        self.target = copy.deepcopy(self.model)
        self.env_steps = 0
        self._refreshed = 0  # how many target networks there have been
        self.final = finals(config.envs_per_actor, seed)

    def sample(self) -> Rollout:
        """Takes T steps in each environment."""
        due = self.env_steps // self.config.target_every
        if due != self._refreshed:
            self._refreshed = due
            self.target.load_state_dict(self.model.state_dict())
        return super().sample()

    def counts(self, environment: int) -> bool:
        """Whether the environment is one of those that explore least."""
        return bool(self.final[environment] == self.final.min())

    @torch.inference_mode()
    def act(self, player: Player, obs: Tree, last: bool) -> AgentOutput:
        """Draws an action for each observation."""
        config, obs = self.config, self.tensors(obs)
        policy, value = self.model(obs)
        q = q_values(policy, value, config.dueling)
        chances = epsilon(self.final, self.env_steps, config.steps_of(config.explore_steps))
        chances = chances.repeat_interleave(config.agents_per_env)
        action = player.draw(epsilon_greedy, q, chances)
        policy, value = self.target(obs)
        q_target = q_values(policy, value, config.dueling)
        if config.on_policy:
            value = taken(q_target, action)
        else:
            value = q_target.max(-1).values
        return AgentOutput(action.numpy(), np.zeros(len(q), np.float32), value.numpy())


def make_work(config: Config, model: nn.Module, seed: int) -> sharing.SegmentWork:
    """Makes what a worker computes with."""
    actor = remotely.local(QActor, config, model, seed)

    def losses_at(policy: Tensor, value: Tensor, rows: Transitions, progress: float) -> Losses:
        return compute_losses(policy, value, rows, config.dueling)

    return sharing.SegmentWork(config, actor, losses_at)


def loop(session: Session[Config]) -> None:
    """A seed does not repeat a run, because the order of pushes depends on timing.

    (With a synchronous rule it does.)
    """
    learner, workers = sampling.workers(session, make_work)
    final, config = (
        torch.tensor(sum(end * share for end, share in EPSILONS)),
        session.learner.config,
    )
    explore_steps = config.steps_of(config.explore_steps)
    session.tally.gauges.append(
        lambda: {"train/epsilon": float(epsilon(final, session.env_steps, explore_steps))}
    )
    while not session.over():
        attributes = session.learner.env_attributes
        broadcast = learner.broadcast(session.env_steps, session.progress, attributes)
        with session.spending("waiting"):
            pushed = workers.take(timeout_s=POLL_S, broadcast=broadcast)
        if pushed is None:
            session.tick()
            continue
        learner.record(pushed)
        report: sharing.Report = pushed.report
        session.tally.sampled(report.steps, report.episodes, report.seconds)
        session.learnt(report.metrics, [pushed.reply.staleness])


train = Train("n_step_q", Config, loop)
