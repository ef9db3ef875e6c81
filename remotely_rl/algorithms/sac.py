"""SAC: soft actor-critic, off-policy learning of a stochastic policy.

Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; equation numbers are theirs.  The policy
maximizes rewards plus its entropy times a temperature, which is learnt so that the entropy stays at
`target_entropy`.  Two critics learn soft action values.  Their targets bootstrap from the lower of
two target networks, which follow the critics slowly: a single critic's overestimates attract the
policy.

A continuous action is the tanh of a Gaussian sample, scaled to the bounds of the environment's Box.
A Dict or a Tuple of Boxes is one vector; a model's policy output is all means, then all log
standard deviations.  A discrete action, of Discrete(n), is one of n whose logits are the outputs
(Christodoulou 2019, https://arxiv.org/abs/1910.07207): critics have a value for each, and
expectations over the policy are exact where those of continuous actions are of one sample
(`functions/soft_policies.py`).

Actors play in rounds, at random until `learn_from`.  After each round the learner makes as many
updates as `replay_ratio` asks for: one per step if it equals `batch_size`.  Differences from the
paper:

    actors take `rollout_steps` steps with the same policy, and there may be several actors
    policy, critics and temperature take one Adam step together (paper: one after another)
    observations are normalized by running statistics, which the target networks copy
    the policy's standard deviation starts at e^log_std_start and stays between e^-5 and e^2
    rewards are divided by their running root mean square, so that their unit does not matter
    truncated episodes bootstrap
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from remotely_rl import networks
from remotely_rl.acting.random_first import RandomFirst, check_actions
from remotely_rl.config import Common, fields, presets
from remotely_rl.environments import Source
from remotely_rl.environments.action_spaces import Actions, Discrete
from remotely_rl.errors import TrainingError
from remotely_rl.functions import losses
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.functions.q_learning import n_step_target
from remotely_rl.functions.soft_policies import (
    CATEGORICAL,
    ENTROPY_OF_DISCRETE,
    SQUASHED,
    Outlook,
    SoftPolicy,
)
from remotely_rl.learning.learner import ABSENT, Learner, Losses, TargetLearner
from remotely_rl.networks import Critics, CriticsOfAll, PolicyNetwork, SoftActorCritic, frozen
from remotely_rl.runs import replaying, sampling
from remotely_rl.runs.replaying import Steps, Update
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import NOT_NEGATIVE
from remotely_rl.trees import Tree


def lacks(name: str) -> Mapping[str, str]:
    """Return the fields that an algorithm with a soft policy lacks, with the reason."""
    return fields.one_learner(
        f"{name} has one learner: the gradients of its critics, policy and temperature are not"
        " averaged"
    ) | {"free_log_std": f"{name} maximizes entropy, which it chooses in each state"}


@dataclasses.dataclass(frozen=True)
class SoftConfig(Common):
    """The settings of algorithms that learn a soft policy: SAC, and CrossQ (`crossq.py`)."""

    env: Source = "Pendulum-v1"
    actors: int = 1
    envs_per_actor: int = 1
    rollout_steps: int = 32
    sampling: fields.Sampling = "auto"
    overlap: fields.Overlap = False

    replay_rows: fields.ReplayRows = 1_000_000
    learn_from: fields.LearnFrom = 1_000
    save_replay: fields.SaveReplay = True
    batch_size: fields.BatchSize = 256
    replay_ratio: fields.ReplayRatio = 256.0
    prioritized_alpha: fields.PrioritizedAlpha = 0.0
    prioritized_beta: fields.PrioritizedBeta = 0.4
    hindsight: fields.Hindsight = 0

    gamma: fields.Gamma = 0.99
    values_in_rewards: ClassVar[bool] = True
    n_step: ClassVar[int] = 1  # n-step targets would need the entropy at each step in between
    learning_rate: fields.LearningRate = 3e-4
    learning_rate_end: fields.LearningRateEndOrSame = None
    rate_end: ClassVar[float] = math.inf  # i.e. learning_rate: constant by default
    rate_rule: fields.RateRule = "none"
    rate_follows: ClassVar[str] = replaying.RATE_FOLLOWS
    max_grad_norm: fields.MaxGradNorm = 0.0
    hidden: fields.Hidden = "256,256"
    activation: fields.Activation = "relu"
    log_std_start: fields.LogStdStart = INITIAL_LOG_STD
    of_networks: ClassVar[tuple[str, ...]] = ("log_std_start",)  # the others apply to the critics
    takes_discrete: ClassVar[bool] = False
    initial_temperature: Annotated[
        float,
        "temperature at the start: what one nat of entropy is worth, in root mean squares of"
        " rewards",
        NOT_NEGATIVE,
    ] = 0.2
    target_entropy: Annotated[
        float | None,
        "target entropy of the policy in nats; none: minus the number of coordinates, or of n"
        f" legal actions {ENTROPY_OF_DISCRETE:g} log n",
    ] = None

    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        replaying.check(self)

    def check_run(self) -> None:
        replaying.check_sizes(self, self.n_step)
        if self.initial_temperature == 0:
            raise TrainingError("initial_temperature must be more than 0: its logarithm is learnt")

    def make_model(
        self, source: networks.ModelSource | None, spec: Tree, actions: Actions
    ) -> SoftActorCritic:
        """Make the networks.  A `source` of your own is the policy; its value head is ignored.

        Raises TrainingError as `networks.build` does, and for actions that do not fit.
        """
        name = presets.algorithm_of(type(self))
        check_actions(name, actions, takes_discrete=self.takes_discrete)
        networks.check_has_images(spec, self.architecture)
        if source is None:
            policy = networks.with_masks(lambda of: self._policy(of, actions), spec)
        else:
            policy = super().make_model(source, spec, actions)
            replaying.check_has_no_memory(policy)
        critics: Critics | CriticsOfAll
        if isinstance(actions, Discrete):
            critics = CriticsOfAll(spec, actions.count, self.architecture_of_critics)
        else:
            critics = Critics(spec, actions.shape[0], self.architecture_of_critics)
        return SoftActorCritic(policy, critics, self.initial_temperature)

    @property
    def architecture_of_critics(self) -> networks.Architecture:
        """The architecture of the critics."""
        return self.architecture

    def _policy(self, spec: Tree, actions: Actions) -> PolicyNetwork:
        policy = PolicyNetwork(spec, actions.outputs, self.architecture)
        start = kind_of(actions).start(actions.outputs, self.log_std_start)
        networks.start_policy(policy.policy, start)
        return policy

    @property
    def rate_ratio(self) -> float:
        """The batch size, relative to the one that the learning rate is given for."""
        return self.batch_size / replaying.RATE_IS_FOR

    def entropy_for(self, outlook: Outlook) -> Tensor | float:
        """Return the entropy, in nats, at which the temperature holds the policy."""
        return outlook.usual_entropy if self.target_entropy is None else self.target_entropy

    def unused(self) -> dict[str, str]:
        return super().unused() | replaying.unused(self)

    @property
    def outputs_are(self) -> str:
        return "a soft policy and its critics"

    def best(self, actions: Actions, policy: Tensor) -> Tensor:
        """Return the greedy action: the tanh of the mean, or the most likely one."""
        return kind_of(actions).mode(policy)

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """Sample an action of an actor, or of an agent that is not greedy."""
        return kind_of(actions).draw(policy, generator)

    def draw_uniformly(
        self, actions: Actions, policy: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw an action of an actor before `learn_from`."""
        return kind_of(actions).draw_uniformly(policy, generator)


def kind_of(actions: Actions) -> SoftPolicy:
    """Return the kind of policy for these actions."""
    return CATEGORICAL if isinstance(actions, Discrete) else SQUASHED


@dataclasses.dataclass(frozen=True)
class Config(SoftConfig):
    """The settings; their descriptions are the help of `remotely-rl train sac`."""

    lacks: ClassVar[Mapping[str, str]] = lacks("sac")
    takes_discrete: ClassVar[bool] = True

    tau: fields.Tau = 0.005
    critic_norm: fields.CriticNorm = networks.NONE

    def __post_init__(self) -> None:
        super().__post_init__()
        networks.check_norm(self.critic_norm)

    @property
    def architecture_of_critics(self) -> networks.Architecture:
        return dataclasses.replace(self.architecture, norm=self.critic_norm)


class LearnsPolicy(Protocol):
    """What `policy_losses` reads of a learner."""

    model: SoftActorCritic
    critic_parameters: list[nn.Parameter]
    critics: Callable[[Tree, Tensor | None], Tensor]

    @property
    def config(self) -> SoftConfig: ...

    def outlook(self, obs: Tree) -> Outlook: ...


class SoftLearner(TargetLearner[Config]):
    """The policy, the critics, and the target critics that follow them."""

    model: SoftActorCritic
    target: Critics | CriticsOfAll
    adam_epsilon = 1e-8  # that of the authors

    def __init__(self, config: Config, model: nn.Module, actions: Actions):
        super().__init__(config, model, actions)
        self.critic_parameters = list(self.model.critics.parameters())
        compiled = torch.compile if config.compile else lambda network: network
        self.policy: Callable[[Tree], tuple[Tensor, Tensor]] = compiled(self.model.policy)
        self.critics: Callable[[Tree, Tensor | None], Tensor] = compiled(self.model.critics)

    @property
    def followed(self) -> nn.Module:
        return self.model.critics

    def outlook(self, obs: Tree) -> Outlook:
        """Return the actions of the policy over which its expectations are taken."""
        return kind_of(self.actions).outlook(self.policy(obs)[0], self.generator)


@torch.no_grad()
def compute_targets(learner: SoftLearner, steps: Steps) -> Tensor:
    """Compute the critics' targets [N]: the soft Bellman backup, equations 2 and 3."""
    outlook = learner.outlook(steps.next_obs)
    q = learner.target(steps.next_obs, outlook.action)
    value = losses.soft_value(q, outlook.log_prob, learner.model.log_temperature.exp())
    reward = learner.value_scale.normalize(steps.reward)
    return n_step_target(reward, steps.discount, outlook.mean(value))


def compute_losses(learner: SoftLearner, steps: Steps) -> tuple[Losses, Tensor]:
    """Compute the losses, and the priority of each transition [N].

    The critic loss is half the mean squared error (equation 5), the policy loss minus the soft
    value (equation 7), and the temperature loss equation 18.  Each network gets a gradient from its
    own loss only.
    """
    error = learner.critics(steps.obs, steps.action) - compute_targets(learner, steps)
    critic_loss = 0.5 * (steps.weight * error.square()).mean()

    policy_loss, temperature_loss, entropy = policy_losses(learner, steps.obs)
    total = critic_loss + policy_loss + temperature_loss
    parts = Losses(total, policy_loss, critic_loss, entropy, ABSENT)
    return parts, error.detach().abs().mean(0)


def policy_losses(learner: LearnsPolicy, obs: Tree) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the losses of the policy and of the temperature, and the policy's entropy."""
    outlook = learner.outlook(obs)
    log_temperature = learner.model.log_temperature
    with frozen(learner.critic_parameters):
        q = learner.critics(obs, outlook.action)
    value = losses.soft_value(q, outlook.log_prob, log_temperature.detach().exp())
    log_prob = outlook.mean(outlook.log_prob)
    target_entropy = learner.config.entropy_for(outlook)
    temperature_loss = losses.temperature_loss(log_temperature, log_prob, target_entropy)
    return -outlook.mean(value).mean(), temperature_loss, -log_prob.mean()


def update(learner: SoftLearner, steps: Steps, progress: float) -> Update:
    """Take one step on a batch; return metrics and priorities.  `progress` anneals the rate."""
    learner.learning_rate.anneal(progress)
    with learner.autocast():
        parts, priority = compute_losses(learner, steps)
    updated = take_step(learner, parts, priority)
    learner.average_target(learner.config.tau)
    return updated


def take_step(learner: Learner[Any], parts: Losses, priority: Tensor) -> Update:
    """Take the step of an update of a SoftActorCritic; return metrics and priorities."""
    metrics = learner.count_update([learner.step(parts)])
    errors, unit = priority.cpu().numpy(), learner.value_scale.std  # of rewards
    assert isinstance(learner.model, SoftActorCritic)
    metrics["train/temperature"] = learner.model.log_temperature.exp().item() * unit
    metrics["train/td_error"] = float(errors.mean()) * unit
    return Update(metrics, errors)


def loop(session: Session[Config]) -> None:
    """Train.  Without `overlap`, a seed repeats the run, bit for bit, on one machine."""
    replaying.learn(session, sampling.rounds(session, RandomFirst), update)


train = Train("sac", Config, loop, learner=SoftLearner)
