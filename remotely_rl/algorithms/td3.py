"""TD3: twin delayed deep deterministic policy gradient, for continuous actions.

Fujimoto, van Hoof and Meger 2018, https://arxiv.org/abs/1802.09477; sections are theirs.  The
policy is deterministic, and follows the gradient of a critic with respect to the action (Silver et
al. 2014).  A critic's overestimates attract the policy, so TD3 has

    a second critic: targets take the lower of two values                      section 4.2
    a delay: policy and target networks move every `policy_delay` updates      section 5.2
    noise on the target policy's actions, which smooths the target values      section 5.3

An action is the tanh of the policy's output, one number for each coordinate, scaled to the bounds
of the environment's Box.  A Dict or a Tuple of Boxes is one vector.

Actors play in rounds, at random until `learn_from` and then with Gaussian noise.  After each round
the learner makes as many updates as `replay_ratio` asks for: one per step if it equals
`batch_size`.  Sizes and rates are those of the authors' later code,
https://github.com/sfujim/TD3.  Differences from the paper:

    actors take `rollout_steps` steps with the same policy, and there may be several actors
    policy and critics take one Adam step together (paper: one after another)
    observations are normalized by running statistics, which the target networks copy
    rewards are divided by their running root mean square, so that their unit does not matter
    truncated episodes bootstrap, and n-step targets are possible
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from remotely_rl import networks
from remotely_rl.acting.random_first import RandomFirst, check_actions
from remotely_rl.config import Common, fields
from remotely_rl.environments import Source
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.experience.batch import full
from remotely_rl.functions import losses
from remotely_rl.functions.distributions import perturbed
from remotely_rl.functions.q_learning import n_step_target
from remotely_rl.learning.learner import ABSENT, Losses, TargetLearner
from remotely_rl.networks import Critics, PolicyAndCritics, PolicyNetwork, frozen
from remotely_rl.runs import replaying, sampling
from remotely_rl.runs.replaying import Steps, Update
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import COUNT, NOT_NEGATIVE
from remotely_rl.trees import Tree


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train td3`."""

    lacks: ClassVar[Mapping[str, str]] = fields.one_learner(
        "td3 has one learner: the gradients of its critics and its policy are not averaged"
    )

    env: Source = "Pendulum-v1"
    actors: int = 1
    envs_per_actor: int = 1
    rollout_steps: int = 32
    sampling: fields.Sampling = "auto"
    overlap: fields.Overlap = False
    exploration_noise: Annotated[
        float, "standard deviation of the actors' noise, on actions in [-1, 1]", NOT_NEGATIVE
    ] = 0.1

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
    n_step: fields.NStep = 1
    learning_rate: fields.LearningRate = 3e-4
    learning_rate_end: fields.LearningRateEndOrSame = None
    rate_end: ClassVar[float] = math.inf  # i.e. learning_rate: constant by default
    rate_rule: fields.RateRule = "none"
    rate_follows: ClassVar[str] = replaying.RATE_FOLLOWS
    max_grad_norm: fields.MaxGradNorm = 0.0
    tau: fields.Tau = 0.005
    policy_delay: Annotated[
        int, "critic updates per update of the policy and the target networks", COUNT
    ] = 2
    target_noise: Annotated[
        float, "standard deviation of the noise on the target policy's actions", NOT_NEGATIVE
    ] = 0.2
    target_noise_clip: Annotated[float, "clip the target policy's noise to this", NOT_NEGATIVE] = (
        0.5
    )
    critic_norm: fields.CriticNorm = networks.NONE
    hidden: fields.Hidden = "256,256"
    activation: fields.Activation = "relu"
    of_networks: ClassVar[tuple[str, ...]] = ()  # they apply to the critics too

    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    paper: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 1e-3,
        "batch_size": 100,
        "replay_ratio": 100.0,
        "hidden": "400,300",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        replaying.check(self)
        networks.check_norm(self.critic_norm)

    def check_run(self) -> None:
        replaying.check_sizes(self, self.n_step)

    def make_model(
        self, source: networks.ModelSource | None, spec: Tree, actions: Actions
    ) -> PolicyAndCritics:
        """Make the networks.  A `source` of your own is the policy; its value head is ignored.

        Raises TrainingError as `networks.build` does, and for actions that are not bounded.
        """
        check_actions("td3", actions)
        (width,) = actions.shape
        networks.check_has_images(spec, self.architecture)
        if source is None:
            policy = networks.for_each_agent(
                lambda of: PolicyNetwork(of, width, self.architecture), spec
            )
        else:
            policy = networks.build(source, spec, width, outputs_are="the width of an action")
            replaying.check_has_no_memory(policy)
        architecture = dataclasses.replace(self.architecture, norm=self.critic_norm)
        return PolicyAndCritics(policy, Critics(spec, width, architecture))

    @property
    def rate_ratio(self) -> float:
        """The batch size, relative to the one that the learning rate is given for."""
        return self.batch_size / replaying.RATE_IS_FOR

    def unused(self) -> dict[str, str]:
        return super().unused() | replaying.unused(self)

    @property
    def outputs_are(self) -> str:
        return "a deterministic policy and its critics"

    def best(self, actions: Actions, policy: Tensor) -> Tensor:
        """Return the greedy action: the tanh of the policy's output."""
        return torch.tanh(full(policy))

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """Add exploration noise: the action of an actor, or of an agent that is not greedy."""
        return perturbed(self.best(actions, policy), self.exploration_noise, generator)

    def draw_uniformly(
        self, actions: Actions, policy: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw an action of an actor before `learn_from`."""
        return torch.empty(policy.shape).uniform_(-1, 1, generator=generator)


class DelayedLearner(TargetLearner[Config]):
    """The policy, the critics, and the target networks that follow both."""

    model: PolicyAndCritics
    target: PolicyAndCritics
    adam_epsilon = 1e-8  # that of the authors

    def __init__(self, config: Config, model: nn.Module, actions: Actions):
        super().__init__(config, model, actions)
        self.critic_parameters = list(self.model.critics.parameters())
        compiled = torch.compile if config.compile else lambda network: network
        self.policy: Callable[[Tree], tuple[Tensor, Tensor]] = compiled(self.model.policy)
        self.critics: Callable[..., Tensor] = compiled(self.model.critics)

    @property
    def policy_is_due(self) -> bool:
        """Whether the next update moves the policy and the target networks too."""
        return (self.version + 1) % self.config.policy_delay == 0


@torch.no_grad()
def compute_targets(learner: DelayedLearner, steps: Steps) -> Tensor:
    """Compute the critics' targets [N] (clipped double Q-learning).

    They bootstrap from the lower target critic's value of the target policy's action plus noise.
    """
    config, target = learner.config, learner.target
    best = config.best(learner.actions, target(steps.next_obs)[0])
    action = perturbed(best, config.target_noise, learner.generator, config.target_noise_clip)
    lower = target.critics(steps.next_obs, action).min(0).values
    return n_step_target(learner.value_scale.normalize(steps.reward), steps.discount, lower)


def compute_losses(learner: DelayedLearner, steps: Steps) -> tuple[Losses, Tensor, Tensor]:
    """Compute the losses, the critics' values [2, N], and the priority of each transition [N].

    The critic loss is half the mean squared error.  The policy loss, if it is due, is minus the
    first critic's value of the policy's actions.
    """
    q = learner.critics(steps.obs, steps.action)
    error = q - compute_targets(learner, steps)
    critic_loss = 0.5 * (steps.weight * error.square()).mean()
    priority = error.detach().abs().mean(0)
    if not learner.policy_is_due:
        return Losses(critic_loss, ABSENT, critic_loss, ABSENT, ABSENT), q.detach(), priority
    action = learner.config.best(learner.actions, learner.policy(steps.obs)[0])
    with frozen(learner.critic_parameters):
        (q_of_first,) = learner.critics(steps.obs, action, 1)
    policy_loss = losses.deterministic_policy_gradient(q_of_first)
    parts = Losses(critic_loss + policy_loss, policy_loss, critic_loss, ABSENT, ABSENT)
    return parts, q.detach(), priority


def update(learner: DelayedLearner, steps: Steps, progress: float) -> Update:
    """Take one step on a batch; return metrics and priorities.  `progress` anneals the rate."""
    learner.learning_rate.anneal(progress)
    is_due = learner.policy_is_due
    with learner.autocast():
        parts, q, priority = compute_losses(learner, steps)
    metrics = learner.count_update([learner.step(parts)])
    if is_due:
        learner.average_target(learner.config.tau)
    errors, unit = priority.cpu().numpy(), learner.value_scale.std  # of rewards
    metrics["train/q_mean"] = q.mean().item() * unit
    metrics["train/td_error"] = float(errors.mean()) * unit
    return Update(metrics, errors)


def loop(session: Session[Config]) -> None:
    """Train.  Without `overlap`, a seed repeats the run, bit for bit, on one machine."""
    replaying.learn(session, sampling.rounds(session, RandomFirst), update)


train = Train("td3", Config, loop, learner=DelayedLearner)
