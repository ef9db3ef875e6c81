"""CrossQ: SAC without target networks, whose critics are normalized over batches.

Bhatt et al. 2024, https://arxiv.org/abs/1902.05605; sections are theirs.  Target networks follow
slowly so that critics do not chase their own predictions, and slow learning down.  CrossQ has none:
it normalizes the critics' features over each batch, which alone keeps them stable, if the batch
holds both kinds of their inputs, taken actions and those that the policy would take next:

    one forward pass for (s, a) and (s', a')         section 3.2: both have the same statistics
    batch renormalization of input and features      section 3.3, and of the policy's
    critics of 2,048 units, if you can afford them   section 3.4; here 256 by default
    one update per step, with a rate of 0.001, Adam's beta1 of 0.5
    a policy that moves every `policy_delay` updates

Everything else is SAC (`sac.py`): policy, temperature, rounds and replay.  Differences from the
paper:

    actors take `rollout_steps` steps with the same policy, and there may be several actors
    policy, critics and temperature take one Adam step together (paper: one after another)
    observations are normalized by running statistics before the batch's
    the policy's standard deviation starts at e^log_std_start and stays between e^-5 and e^2
    rewards are divided by their running root mean square, so that their unit does not matter
    truncated episodes bootstrap
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from remotely_rl import networks, trees
from remotely_rl.acting.random_first import RandomFirst
from remotely_rl.algorithms.sac import SoftConfig, lacks, policy_losses, take_step
from remotely_rl.config import fields
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.functions import losses
from remotely_rl.functions.q_learning import n_step_target
from remotely_rl.functions.soft_policies import SQUASHED, Outlook
from remotely_rl.learning.learner import ABSENT, Learner, Losses
from remotely_rl.networks import SoftActorCritic, batch_statistics, renorms_of
from remotely_rl.runs import replaying, sampling
from remotely_rl.runs.replaying import Steps, Update
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import COUNT
from remotely_rl.trees import Tree

BETAS = 0.5, 0.999


@dataclasses.dataclass(frozen=True)
class Config(SoftConfig):
    """The settings; their descriptions are the help of `remotely-rl train crossq`."""

    lacks: ClassVar[Mapping[str, str]] = lacks("crossq")

    learning_rate: fields.LearningRate = 1e-3
    policy_delay: Annotated[int, "critic updates per update of the policy", COUNT] = 3
    critic_hidden: Annotated[str | tuple[int, ...], "units of each layer of the critics"] = (
        "256,256"
    )

    paper: ClassVar[Mapping[str, Any]] = {"critic_hidden": "2048,2048"}

    def __post_init__(self) -> None:
        super().__post_init__()
        units = networks.hidden_of(self.critic_hidden) or ()
        object.__setattr__(self, "critic_hidden", ",".join(map(str, units)))

    @property
    def architecture(self) -> networks.Architecture:
        return dataclasses.replace(super().architecture, norm=networks.BATCH)

    @property
    def architecture_of_critics(self) -> networks.Architecture:
        units = networks.hidden_of(self.critic_hidden)
        return dataclasses.replace(self.architecture, hidden=units)


class CrossLearner(Learner[Config]):
    """The policy and the critics, which are their own target networks."""

    model: SoftActorCritic
    adam_epsilon = 1e-8  # that of the authors

    def __init__(self, config: Config, model: nn.Module, actions: Actions):
        super().__init__(config, model, actions)
        self.critic_parameters = list(self.model.critics.parameters())
        self.of_policy = renorms_of(self.model.policy)
        self.of_critics = renorms_of(self.model.critics)
        compiled = torch.compile if config.compile else lambda network: network
        self.policy: Callable[[Tree], tuple[Tensor, Tensor]] = compiled(self.model.policy)
        self.critics: Callable[[Tree, Tensor | None], Tensor] = compiled(self.model.critics)

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        rate, epsilon = self.learning_rate.start, self.adam_epsilon
        return torch.optim.Adam(parameters, lr=rate, betas=BETAS, eps=epsilon, fused=True)

    @property
    def policy_is_due(self) -> bool:
        """Whether the next update moves the policy and the temperature too."""
        return (self.version + 1) % self.config.policy_delay == 0

    def outlook(self, obs: Tree) -> Outlook:
        """Draw an action of the policy for each observation."""
        return SQUASHED.outlook(self.policy(obs)[0], self.generator)


def compute_errors(learner: CrossLearner, steps: Steps) -> Tensor:
    """Compute the errors [critics, N] of both critics, in one pass over both kinds of inputs.

    The targets are the soft Bellman backup, from the same pass.
    """
    with torch.no_grad():
        outlook = learner.outlook(steps.next_obs)
        assert outlook.action is not None
    with batch_statistics(learner.of_critics):
        both = learner.critics(
            trees.map_tree(lambda *parts: torch.cat(parts), steps.obs, steps.next_obs),
            torch.cat([steps.action, outlook.action]),
        )
    q, next_q = both.chunk(2, -1)
    temperature = learner.model.log_temperature.exp()
    value = losses.soft_value(next_q.detach(), outlook.log_prob, temperature)
    reward = learner.value_scale.normalize(steps.reward)
    return q - n_step_target(reward, steps.discount, value).detach()


def compute_losses(learner: CrossLearner, steps: Steps) -> tuple[Losses, Tensor]:
    """Compute the losses, and the priority of each transition [N].

    The critic loss is half the mean squared error.  Those of policy and temperature, if they are
    due, are SAC's, with critics that are normalized by the running statistics.
    """
    error = compute_errors(learner, steps)
    critic_loss = 0.5 * (steps.weight * error.square()).mean()
    priority = error.detach().abs().mean(0)
    if not learner.policy_is_due:
        return Losses(critic_loss, ABSENT, critic_loss, ABSENT, ABSENT), priority
    with batch_statistics(learner.of_policy):
        policy_loss, temperature_loss, entropy = policy_losses(learner, steps.obs)
    total = critic_loss + policy_loss + temperature_loss
    return Losses(total, policy_loss, critic_loss, entropy, ABSENT), priority


def update(learner: CrossLearner, steps: Steps, progress: float) -> Update:
    """Take one step on a batch; return metrics and priorities.  `progress` anneals the rate."""
    learner.learning_rate.anneal(progress)
    with learner.autocast():
        parts, priority = compute_losses(learner, steps)
    return take_step(learner, parts, priority)


def loop(session: Session[Config]) -> None:
    """Train.  Without `overlap`, a seed repeats the run, bit for bit, on one machine."""
    replaying.learn(session, sampling.rounds(session, RandomFirst), update)


train = Train("crossq", Config, loop, learner=CrossLearner)
