"""DQN: Q-learning from a replay buffer, with a target network.

Mnih et al. 2015, https://doi.org/10.1038/nature14236, and later extensions, each a field:

    double                 van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461
    dueling                Wang et al. 2016, https://arxiv.org/abs/1511.06581
    prioritized_alpha      Schaul et al. 2016, https://arxiv.org/abs/1511.05952
    n_step                 Sutton 1988; uncorrected, as in Rainbow
    atoms, value_bound     Bellemare et al. 2017 (C51), https://arxiv.org/abs/1707.06887
    quantiles              Dabney et al. 2017 (QR-DQN), https://arxiv.org/abs/1710.10044
    noisy                  Fortunato et al. 2018, https://arxiv.org/abs/1706.10295
    n_step_start, ...      Schwarzer et al. 2023 (BBF), https://arxiv.org/abs/2305.19452
    lstm, ...              Kapturowski et al. 2019 (R2D2), https://openreview.net/forum?id=r1lyTjAqYX

`c51.py`, `qr_dqn.py` and `rainbow.py` (Hessel et al. 2018, https://arxiv.org/abs/1710.02298) are
other defaults of these fields; `rainbow --no-noisy` is the epsilon-Rainbow of Stooke and Abbeel
2018, https://arxiv.org/abs/1803.02811, whose large batches and replay ratio this file follows.

Actors play epsilon-greedily in rounds, with the newest parameters.  After each round the learner
makes as many updates as `replay_ratio` asks for: on average each step is drawn that many times,
whatever the batch size.  Differences from the papers:

    several environments at a time, in rounds of a few steps each
    observations are normalized by running statistics, which the target network copies
    the target network's interval is in environment steps, not in updates
    truncated episodes bootstrap
    priorities are the unclipped absolute TD error; with atoms the KL divergence, with quantiles
        the Wasserstein distance
    noisy layers begin with the plain network's weights as means
    n_step and gamma are annealed once, and networks are not reset (BBF: after each reset)
    sequences go on over the end of an episode, and values are not rescaled (R2D2)
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl import networks, trees
from remotely_rl.acting.actor import Actor
from remotely_rl.acting.player import AgentOutput, Player
from remotely_rl.config import Common, fields, presets
from remotely_rl.environments.action_spaces import Actions, check_is_discrete
from remotely_rl.errors import TrainingError
from remotely_rl.experience.replay import SequenceInput
from remotely_rl.functions import categorical, losses, q_learning, quantiles
from remotely_rl.learning.learner import ABSENT, Losses, TargetLearner
from remotely_rl.networks import QNetwork
from remotely_rl.runs import replaying, sampling
from remotely_rl.runs.replaying import Steps, Update
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE
from remotely_rl.trees import Tree


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train dqn`."""

    rollout_steps: int = 8
    sampling: fields.Sampling = "auto"
    overlap: fields.Overlap = False
    epsilon: Annotated[float, "probability of a random action after explore_steps", FRACTION] = 0.01
    explore_steps: fields.ExploreSteps = 30_000
    epsilon_spread: Annotated[
        float,
        "spread final epsilons from epsilon down to epsilon ** (1 + this), as in Ape-X; 0:"
        " all the same",
        NOT_NEGATIVE,
    ] = 0.0
    noisy: Annotated[bool, "explore by noisy layers, not by epsilon"] = False
    play_epsilon: fields.PlayEpsilon = 0.01

    replay_rows: fields.ReplayRows = 200_000
    learn_from: fields.LearnFrom = 10_000
    save_replay: fields.SaveReplay = True
    batch_size: fields.BatchSize = 128
    replay_ratio: fields.ReplayRatio = 8.0
    prioritized_alpha: fields.PrioritizedAlpha = 0.0
    prioritized_beta: fields.PrioritizedBeta = 0.4
    hindsight: fields.Hindsight = 0

    gamma: fields.Gamma = 0.99
    # Measured on Pong, one seed each: the mean return after 150,000 steps was -15, and -17 with
    # n_step=3, learning_rate=3e-4 and explore_steps=50_000.
    n_step: fields.NStep = 5
    learning_rate: fields.LearningRate = 6e-4
    learning_rate_end: fields.LearningRateEnd = None
    rate_end: ClassVar[float] = 2e-4
    horizon: ClassVar[int] = 500_000
    values_in_rewards: ClassVar[bool] = True
    rate_rule: fields.RateRule = "none"
    rate_follows: ClassVar[str] = replaying.RATE_FOLLOWS
    max_grad_norm: fields.MaxGradNorm = 10.0
    sequence_length: Annotated[
        int,
        "with a memory: steps of a sequence to learn from; one begins every rollout_steps",
        COUNT,
    ] = 16
    burn_in: Annotated[
        int,
        "with a memory: steps before those, which only bring its state up to date",
        NOT_NEGATIVE,
    ] = 8
    lstm: fields.Lstm = 0
    of_memory: ClassVar[tuple[str, ...]] = ("sequence_length", "burn_in")

    weight_decay: Annotated[float, "decoupled weight decay (AdamW)", NOT_NEGATIVE] = 0.0
    target_update_interval: Annotated[
        int, "environment steps between updates of the target network", COUNT
    ] = 2_000
    double: Annotated[bool, "double Q-learning: the online network chooses the next action"] = True
    dueling: Annotated[bool, "dueling heads: a state value plus advantages of actions"] = True
    atoms: Annotated[int, "atoms of the return's distribution (C51); 1: its mean", COUNT] = 1
    value_bound: Annotated[
        float, "the atoms range from minus this to this; returns beyond are clipped", NOT_NEGATIVE
    ] = 10.0
    quantiles: Annotated[
        int, "quantiles of the return's distribution (QR-DQN); 1: its mean", COUNT
    ] = 1
    n_step_start: Annotated[
        int | None, "n_step at the start, annealed over anneal_updates; none: n_step", COUNT
    ] = None
    gamma_start: Annotated[
        float | None, "gamma at the start, annealed over anneal_updates; none: gamma", FRACTION
    ] = None
    anneal_updates: Annotated[
        int, "updates from the start over which n_step and gamma are annealed", COUNT
    ] = 10_000

    learners: fields.Learners = 1
    learners_share: fields.LearnersShare = "gradients"
    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    paper: ClassVar[Mapping[str, Any]] = {
        "n_step": 1,
        "double": False,
        "dueling": False,
        "image_size": 84,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        replaying.check(self)

    def check_run(self) -> None:
        replaying.check_sizes(self, max(self.n_step, self.n_step_at(0)))
        if self.atoms > 1 and self.value_bound == 0:
            raise TrainingError("value_bound must be more than 0, or all atoms are the same")
        if self.atoms > 1 and self.quantiles > 1:
            raise TrainingError(
                f"atoms ({self.atoms}) and quantiles ({self.quantiles}) are two forms of a"
                " distribution of returns: one of them must be 1"
            )
        if self.gamma_start is not None and self.gamma_start >= 1:
            raise TrainingError("gamma_start must be below 1: its horizon is annealed")

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        if networks.is_recurrent(model):
            replaying.check_sequences(self, max(self.n_step, self.n_step_at(0)))

    def warning_of(self, largest: float) -> str:
        """Return the warning about this discounted return; empty if there is none."""
        if self.atoms == 1 or largest <= self.value_bound:
            return ""
        return (
            f"a discounted return of {largest:.3g} is beyond value_bound ({self.value_bound:g}),"
            " which clips returns; set value_bound to the largest"
        )

    @property
    def rate_ratio(self) -> float:
        """The batch size, relative to the one that the learning rate is given for."""
        return self.batch_size / replaying.RATE_IS_FOR

    def n_step_at(self, updates: int) -> int:
        """Return the number of rewards in a target, after this many updates."""
        start = self.n_step_start or self.n_step
        return round(geometric(start, self.n_step, self._annealed_at(updates)))

    def gamma_at(self, updates: int) -> float:
        """Return the discount of targets, after this many updates."""
        start = self.gamma if self.gamma_start is None else self.gamma_start
        return annealed_gamma(start, self.gamma, self._annealed_at(updates))

    def _annealed_at(self, updates: int) -> float:
        """Return how far n_step and gamma are annealed, from 0 to 1."""
        return min(1.0, updates / self.anneal_updates)

    def make_model(
        self, source: networks.ModelSource | None, spec: Tree, actions: Actions
    ) -> QNetwork:
        made = networks.build_q_network(
            source,
            spec,
            check_is_discrete(presets.algorithm_of(type(self)), actions).count,
            is_dueling=self.dueling,
            atoms=self.atoms,
            bound=self.value_bound,
            quantiles=self.quantiles,
            architecture=self.architecture,
        )
        if self.noisy:
            networks.make_noisy(made)
        return made

    @property
    def outputs_are(self) -> str:
        if self.atoms > 1:
            return q_learning.described(self.dueling, f"distributions over {self.atoms} returns")
        if self.quantiles > 1:
            return q_learning.described(self.dueling, f"{self.quantiles} quantiles of returns")
        return q_learning.described(self.dueling)

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """Sample the action of a trained agent that does not play greedily."""
        return q_learning.epsilon_greedy(policy, self.play_epsilon, generator)

    def epsilons_at(self, env_steps: int) -> Tensor:
        """Return the probability of a random action in each environment of an actor."""
        final = 0.0 if self.noisy else self.epsilon
        ends = q_learning.spread(final, self.epsilon_spread, self.envs_per_actor)
        ends = ends.repeat_interleave(self.agents_per_env)
        steps = 1 if self.noisy else self.steps_of(self.explore_steps)
        return q_learning.epsilon(ends, env_steps - self.learn_from, steps)

    def unused(self) -> dict[str, str]:
        why = super().unused()
        if self.noisy:
            of_epsilon = ("epsilon", "explore_steps", "epsilon_spread")
            why |= dict.fromkeys(of_epsilon, "noisy layers explore instead of epsilon")
        if self.envs_per_actor == 1:
            why["epsilon_spread"] = "an actor has one environment"
        if self.n_step_start is None and self.gamma_start is None:
            why["anneal_updates"] = "there is no n_step_start or gamma_start to anneal from"
        if not self.lstm:
            why |= dict.fromkeys(self.of_memory, "the network has no memory: lstm is 0")
        if self.atoms == 1:
            why["value_bound"] = "it bounds the atoms, and atoms is 1"
        return why | replaying.unused(self)

    def gauge(self, env_steps: int) -> dict[str, float]:
        """Return the metric of exploration: the mean epsilon of an actor's environments."""
        if self.noisy:
            return {}
        return {"train/epsilon": float(self.epsilons_at(env_steps).mean())}


class QLearner(TargetLearner[Config]):
    """The online and the target network, with noisy layers if asked for."""

    model: QNetwork
    target: QNetwork

    def __init__(self, config: Config, model: nn.Module, actions: Actions):
        super().__init__(config, model, actions)
        is_recurrent = networks.is_recurrent(self.model)
        heads: Callable[..., Any] = self.model.unroll if is_recurrent else self.model.heads
        self.heads = torch.compile(heads) if config.compile else heads

    def make_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        config = self.config
        return torch.optim.AdamW(
            parameters,
            lr=self.learning_rate.start,
            eps=1e-5,
            weight_decay=config.weight_decay,
            fused=True,
        )


class Heads(NamedTuple):
    """Heads for each row to learn from: values [N, A], or distributions [N, A, width]."""

    online: Tensor  # of the online network, for the row's observation
    target: Tensor  # of the target network, for the one to bootstrap from
    best: Tensor  # [N], the best action there by the target network, or the online one (double)


def compute_heads(learner: QLearner, steps: Steps) -> Heads:
    """Run both networks on a batch."""
    if steps.sequences is not None:
        return unrolled_heads(learner, steps.obs, steps.sequences)
    with torch.no_grad():
        target = learner.target.heads(steps.next_obs)
        chooser = learner.heads(steps.next_obs) if learner.config.double else target
        best = learner.model.values(chooser, steps.next_obs).argmax(-1)
    return Heads(learner.heads(steps.obs), target, best)


def unrolled_heads(learner: QLearner, obs: Tree, of: SequenceInput) -> Heads:
    """Run both networks over sequences, from the state of the network that acted (R2D2).

    In the first `burn_in` steps they only bring this state up to date, without gradients.
    """
    old, new = slice(of.burn_in), slice(of.burn_in, None)
    past, now = (trees.map_tree(lambda x: x[at], obs) for at in (old, new))  # noqa: B023 - called at once
    with torch.no_grad():
        target, _ = learner.target.unroll(obs, of.state, of.begins)
        _, state = learner.heads(past, of.state, of.begins[old]) if of.burn_in else (None, of.state)
    online, _ = learner.heads(now, state, of.begins[new])
    with torch.no_grad():
        chooser = online if learner.config.double else target[new]
        best = learner.model.values(chooser, now).argmax(-1)
    return Heads(
        online[of.step - of.burn_in, of.column],
        target[of.next_step, of.column],
        best[of.next_step - of.burn_in, of.column],
    )


@torch.no_grad()
def compute_targets(learner: QLearner, steps: Steps, heads: Heads) -> Tensor:
    """Compute the targets for the actions taken: returns [N], or distributions [N, width].

    R + gamma^n Q'(s', a*), where Q' is the target network and a* its best action, or the online
    network's (double).
    """
    model = learner.model
    bootstrap = q_learning.taken(heads.target, heads.best)
    if model.is_categorical:
        return categorical.project(bootstrap.softmax(-1), steps.reward, steps.discount, model.atoms)
    reward, discount = learner.value_scale.normalize(steps.reward), steps.discount
    if model.is_distributional:  # each quantile gets the same reward and discount
        reward, discount = reward.unsqueeze(-1), discount.unsqueeze(-1)
    return q_learning.n_step_target(reward, discount, bootstrap)


def compute_errors(model: QNetwork, heads: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the loss and the priority of each transition, both [N].

    For values [N], the Huber loss and the absolute error.  For atoms [N, atoms], the cross-entropy
    and the KL divergence, which differ by the target's entropy.  For quantiles [N, quantiles], the
    quantile Huber loss and the Wasserstein distance.
    """
    if model.is_categorical:
        loss = categorical.cross_entropy(heads, target)
        return loss, categorical.kl_divergence(heads.detach(), target)
    if model.is_distributional:
        loss = quantiles.quantile_huber(heads, target)
        return loss, quantiles.wasserstein(heads.detach(), target)
    error = target - heads
    return losses.huber(error), error.detach().abs()


def update(learner: QLearner, steps: Steps, env_steps: int, progress: float) -> Update:
    """Take one step on a batch; return metrics and priorities.

    `env_steps`, the run's steps so far, decides when the target network is updated; `progress`
    (0 to 1) anneals the learning rate.
    """
    config = learner.config
    learner.learning_rate.anneal(progress)
    learner.renew_target(env_steps, config.target_update_interval)
    if config.noisy:
        networks.resample(learner.model, learner.generator)
        networks.resample(learner.target, learner.generator)
    with learner.autocast():
        both = compute_heads(learner, steps)
        target = compute_targets(learner, steps, both)
        heads = q_learning.taken(both.online, steps.action)
    loss, priority = compute_errors(learner.model, heads, target)
    total = (steps.weight * loss).mean()
    parts = Losses(total, ABSENT, total.detach(), ABSENT, ABSENT)
    metrics = learner.count_update([learner.step(parts)])
    errors = priority.cpu().numpy()
    unit = 1.0 if learner.model.is_categorical else learner.value_scale.std  # of rewards
    metrics["train/q_mean"] = learner.model.means(heads.detach()).mean().item() * unit
    metrics["train/td_error"] = float(errors.mean()) * unit
    return Update(metrics, errors)


class QActor(Actor):
    """Acts epsilon-greedily, or greedily with noisy layers."""

    model: QNetwork
    config: Config
    fills_replay = True

    def counts(self, environment: int) -> bool:
        """Return whether an environment's returns are reported.

        With `epsilon_spread`, only the one with the lowest epsilon counts.
        """
        return not self.config.epsilon_spread or environment == self.config.envs_per_actor - 1

    @torch.inference_mode()
    def act(self, player: Player, obs: Tree, last: bool) -> AgentOutput:
        """Choose an action for each observation."""
        count = player.envs.num_envs
        zeros = np.zeros(count, np.float32)
        if last:
            return AgentOutput(np.empty(0), zeros, zeros)
        obs = self.tensors(obs)
        epsilons = self.config.epsilons_at(self.env_steps)
        if bool((epsilons == 1).all()) and not self.is_recurrent:  # a memory has to see it
            q = self.model.masked(torch.zeros(count, self.model.actions, device=self.device), obs)
        elif self.config.noisy:  # the environments of an actor share the noise
            parts = []
            for at, random in player.parts():
                networks.resample(self.model, random)
                parts.append(self.infer(player, obs, at)[0])
            q = torch.cat(parts)
        else:
            q, _ = self.infer(player, obs)
        epsilons = epsilons.repeat(count // player.width)
        action = player.draw(q_learning.epsilon_greedy, q.cpu(), epsilons)
        return AgentOutput(action.numpy(), zeros, zeros)


def loop(session: Session[Config]) -> None:
    """Train.  Without `overlap`, a seed repeats the run, bit for bit, on one machine."""
    learner = session.learner
    assert isinstance(learner, QLearner)
    replay = replaying.RunReplay(session)
    session.tally.gauges.append(lambda: learner.config.gauge(session.env_steps))
    for rollouts in replay.rounds(sampling.rounds(session, QActor)):
        config = learner.config  # a hook may have changed it
        session.warn("value_bound", config.warning_of(replay.largest_return(rollouts)))
        for progress in replay.updates():
            updates = learner.version
            draw = replay.draw(
                progress, n_step=config.n_step_at(updates), gamma=config.gamma_at(updates)
            )
            steps = replaying.to_device(learner, draw)
            replay.learnt(draw, update(learner, steps, session.env_steps, progress))


train = Train("dqn", Config, loop, learner=QLearner)


def geometric(start: float, end: float, done: float) -> float:
    """Interpolate geometrically from `start` to `end` as `done` goes from 0 to 1."""
    return start * math.exp(done * math.log(end / start))


def annealed_gamma(start: float, end: float, done: float) -> float:
    """Interpolate a discount, whose horizon 1 / (1 - gamma) grows geometrically."""
    return 1 - geometric(1 - start, 1 - end, done) if end < 1 else end
