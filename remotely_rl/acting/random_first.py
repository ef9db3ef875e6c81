"""RandomFirst: the actor of SAC, TD3 and CrossQ."""

from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from remotely_rl.acting.actor import Actor
from remotely_rl.acting.player import AgentOutput, Player
from remotely_rl.environments.action_spaces import Actions, Composite, Continuous, Discrete
from remotely_rl.errors import TrainingError
from remotely_rl.trees import Tree


class Explores(Protocol):
    """What the actor reads of the Configs of SAC and TD3."""

    @property
    def learn_from(self) -> int: ...

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor: ...

    def draw_uniformly(
        self, actions: Actions, policy: Tensor, generator: torch.Generator
    ) -> Tensor: ...


class RandomFirst(Actor):
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
        policy, _ = self.model(self.tensors(obs))
        draw = config.draw_uniformly if self.env_steps < config.learn_from else config.draw
        action = player.draw(lambda rows, random: draw(actions, rows, random), policy.cpu())
        return AgentOutput(action.numpy(), nothing, nothing)


def check_actions(name: str, actions: Actions, *, takes_discrete: bool = False) -> None:
    """Raise TrainingError, naming the algorithm, unless all actions are from bounded Boxes.

    With `takes_discrete` they may be Discrete(n) too.
    """
    if takes_discrete and isinstance(actions, Discrete):
        return
    parts = actions.parts if isinstance(actions, Composite) else (actions,)
    boxes = [part for part in parts if isinstance(part, Continuous)]
    if len(boxes) < len(parts):
        needs = "continuous actions: a Box of floats, or a Dict or Tuple of these"
        use = "for several choices, or for discrete and continuous actions together ppo"
        if takes_discrete:
            raise TrainingError(f"{name} needs Discrete(n), or {needs}; {use}")
        raise TrainingError(f"{name} needs {needs}; for Discrete(n) use sac, dqn or ppo, {use}")
    for box in boxes:
        if not np.isfinite([box.low, box.high]).all():
            raise TrainingError(
                f"{name} needs bounded actions, and these are from {list(box.low)} to"
                f" {list(box.high)}: give the Box of the environment finite bounds, or use ppo"
            )
