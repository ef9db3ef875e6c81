"""ContinuousActor: the actor of SAC, TD3 and CrossQ, for Box action spaces."""

from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from remotely_rl.acting.actor import Actor
from remotely_rl.acting.player import AgentOutput, Player
from remotely_rl.environments.action_spaces import Actions, Composite, Continuous
from remotely_rl.errors import TrainingError
from remotely_rl.trees import Tree


class Explores(Protocol):
    """What the actor reads of the Configs of SAC and TD3."""

    @property
    def learn_from(self) -> int: ...

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor: ...


class ContinuousActor(Actor):
    """Samples actions from the newest policy; uniformly before `learn_from` steps."""

    fills_replay = True

    @torch.inference_mode()
    def act(self, player: Player, obs: Tree, last: bool) -> AgentOutput:
        """Draw an action for each observation."""
        config = cast(Explores, self.config)
        actions, count = player.envs.actions, player.envs.num_envs
        nothing = np.zeros(count, np.float32)
        if last:
            return AgentOutput(np.empty(0), nothing, nothing)
        if self.env_steps < config.learn_from:
            action = player.draw(uniform, torch.empty(count, *actions.shape))
        else:
            policy, _ = self.model(self.tensors(obs))
            action = player.draw(
                lambda rows, random: config.draw(actions, rows, random), policy.cpu()
            )
        return AgentOutput(action.numpy(), nothing, nothing)


def uniform(into: Tensor, generator: torch.Generator) -> Tensor:
    """Write uniformly drawn actions into a tensor."""
    return into.uniform_(-1, 1, generator=generator)


def check_bounds(name: str, actions: Actions) -> None:
    """Raise TrainingError, naming the algorithm, unless all actions are from bounded Boxes."""
    parts = actions.parts if isinstance(actions, Composite) else (actions,)
    boxes = [part for part in parts if isinstance(part, Continuous)]
    if len(boxes) < len(parts):
        raise TrainingError(
            f"{name} needs continuous actions: a Box of floats, or a Dict or Tuple of these; for"
            " Discrete(n) use dqn or ppo, for discrete and continuous actions together ppo"
        )
    for box in boxes:
        if not np.isfinite([box.low, box.high]).all():
            raise TrainingError(
                f"{name} needs bounded actions, and these are from {list(box.low)} to"
                f" {list(box.high)}: give the Box of the environment finite bounds, or use ppo"
            )
