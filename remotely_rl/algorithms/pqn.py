"""PQN: Q-learning from parallel environments, without a replay and without a target network.

Gallici et al. 2025, Simplifying Deep Temporal Difference Learning,
https://arxiv.org/abs/2407.04811.  Layer norm keeps the values of a network that bootstraps from
itself from diverging (their section 3), and many environments at a time replace the replay that
makes a batch diverse.  What is left is algorithm 1:

    all environments play `rollout_steps` steps epsilon-greedily, with the same parameters
    returns      G_t = r_t + gamma ((1 - lambda) max_a Q(s_{t+1}, a) + lambda G_{t+1})
    update       several epochs of minibatches, each a step on (G_t - Q(s_t, a_t))^2

These returns are Peng's Q(lambda), uncorrected for the steps that explored.  They are the value
targets of GAE (`functions/returns.py`) for the best actions' values, which actors record as they
play; so the rounds, the batch and its minibatches are those of PPO.

Differences from the paper:

    images of 42x42, unless `image_size` says otherwise, and the small network for them
    layer norm of convolutions is over all pixels, with a scale for each channel
    observations are normalized by running statistics before the network
    where rewards are not clipped, returns are normalized (paper: rewards are divided by 10)
    epsilon falls to 0.01 (paper: 0.001) over a number of steps (paper: a tenth of the run)
    truncated episodes bootstrap
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl import networks
from remotely_rl.acting.actor import Actor
from remotely_rl.acting.player import AgentOutput, Player
from remotely_rl.config import Common, fields
from remotely_rl.environments.action_spaces import Actions, check_is_discrete
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses, q_learning, returns
from remotely_rl.learning.learner import ABSENT, Learner, Losses, make_batch, to_device
from remotely_rl.networks import QNetwork
from remotely_rl.runs import sampling
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import FRACTION, LENGTH
from remotely_rl.trees import Tree


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train pqn`."""

    envs_per_actor: int = 64
    rollout_steps: int = 32
    sampling: fields.Sampling = "auto"
    resets: fields.Resets = "at_once"
    arrivals: fields.Arrivals = False
    epsilon: Annotated[float, "probability of a random action after explore_steps", FRACTION] = 0.01
    explore_steps: Annotated[
        float, "steps, or fraction of total_steps, over which epsilon falls from 1", LENGTH
    ] = 100_000
    play_epsilon: fields.PlayEpsilon = 0.01

    gamma: fields.Gamma = 0.99
    gae_lambda: Annotated[
        float, "lambda of Q(lambda): 1 for whole returns, 0 for one-step targets", FRACTION
    ] = 0.65
    normalize_values: fields.NormalizeValues = None
    epochs: fields.Epochs = 2
    minibatches: fields.Minibatches = 32
    max_grad_norm: fields.MaxGradNorm = 10.0
    activation: fields.Activation = "relu"
    learning_rate: Annotated[float, "RAdam's learning rate at the start"] = 2.5e-4
    learning_rate_end: fields.LearningRateEndOrSame = None
    rate_end: ClassVar[float] = math.inf  # i.e. learning_rate: constant by default

    learners: fields.Learners = 1
    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    lacks: ClassVar[Mapping[str, str]] = {
        "learners_share": "pqn's learners always share gradients: with a store, an update of"
        " several epochs would be stale before its end; a2c, dqn, c51, qr_dqn and rainbow can share"
        " a store"
    }
    paper: ClassVar[Mapping[str, Any]] = {
        "epsilon": 0.001,
        "explore_steps": 1_000_000,
        "image_size": 84,
        "life_loss_is_terminal": True,
    }

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        assert isinstance(model, QNetwork)
        if networks.is_recurrent(model.model):
            raise TrainingError(
                "pqn keeps no recurrent state; to train an LSTM use a2c, ppo or impala"
            )

    @property
    def architecture(self) -> networks.Architecture:
        return dataclasses.replace(super().architecture, norm=networks.LAYER)

    def make_model(
        self, source: networks.ModelSource | None, spec: Tree, actions: Actions
    ) -> QNetwork:
        """Make the network; a `source` of your own should have layer norm."""
        count = check_is_discrete("pqn", actions).count
        return networks.build_q_network(
            source, spec, count, is_dueling=False, architecture=self.architecture
        )

    @property
    def outputs_are(self) -> str:
        return q_learning.described(is_dueling=False)

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """Sample the action of a trained agent that does not play greedily."""
        return q_learning.epsilon_greedy(policy, self.play_epsilon, generator)

    def epsilon_at(self, env_steps: int) -> float:
        """Return the probability of a random action after this many steps of the run."""
        final, steps = torch.tensor(self.epsilon), self.steps_of(self.explore_steps)
        return float(q_learning.epsilon(final, env_steps, steps))


class RolloutQLearner(Learner[Config]):
    """The Q-network and RAdam (Liu et al. 2020, https://arxiv.org/abs/1908.03265)."""

    adam_epsilon = 1e-8  # that of the authors

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.RAdam(
            parameters, lr=self.learning_rate.start, eps=self.adam_epsilon, foreach=True
        )


def compute_losses(q: Tensor, rows: Transitions) -> Losses:
    """Compute half the mean squared error of the values [N] of the actions taken."""
    error = losses.squared_error(q_learning.taken(q, rows.action), rows.value_target)
    return Losses(error, ABSENT, error.detach(), ABSENT, ABSENT)


def update(learner: RolloutQLearner, trajectory: Trajectory, progress: float) -> dict[str, float]:
    """Learn from a rollout; return metrics.  `progress` (0 to 1) anneals the rate."""
    config = learner.config
    learner.learning_rate.anneal(progress)

    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward,
        rollout.discount,
        rollout.value,
        valid=rollout.valid,
        gae_lambda=config.gae_lambda,
    )
    batch = make_batch(learner, rollout, targets)

    steps = []
    for _ in range(config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            q, _, rows = learner.forward(minibatch)
            steps.append(learner.step(compute_losses(q, rows), len(rows.action)))
    return learner.end_update(steps, batch, config.epochs)


class QActor(Actor):
    """Acts epsilon-greedily; the values that it records are the best actions'."""

    config: Config

    @torch.inference_mode()
    def act(self, player: Player, obs: Tree, last: bool) -> AgentOutput:
        """Choose an action for each observation."""
        q, best = self.network(self.tensors(obs))
        value = best.cpu().numpy()
        if last:
            return AgentOutput(np.empty(0), np.empty(0, np.float32), value)
        epsilon = self.config.epsilon_at(self.env_steps)
        action = player.draw(
            lambda rows, random: q_learning.epsilon_greedy(rows, epsilon, random), q.cpu()
        )
        return AgentOutput(action.numpy(), np.zeros(len(value), np.float32), value)


def loop(session: Session[Config]) -> None:
    """Train.  A seed repeats the run, bit for bit, on one machine."""
    learner = session.learner
    assert isinstance(learner, RolloutQLearner)
    session.tally.gauges.append(
        lambda: {"train/epsilon": learner.config.epsilon_at(session.env_steps)}
    )
    actors = sampling.rounds(session, QActor, arrivals=learner.config.arrivals)
    while not session.over():
        if actors.idle:
            actors.begin(learner.parameters(session.env_steps))
        trajectory = session.collect(actors)
        if trajectory is None:
            continue
        with session.spending("learning"):
            metrics = update(learner, trajectory, session.progress)
        session.learnt(metrics, staleness=[0])


train = Train("pqn", Config, loop, learner=RolloutQLearner)
