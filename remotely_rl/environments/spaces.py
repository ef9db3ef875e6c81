"""Spaces: the spaces of an environment, and what models see and return in it.

They are all that an agent needs to act, so a run folder keeps them (`runs/run_folder.py`).
"""

import functools
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from remotely_rl.environments import action_spaces
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION, Leaf, Observations
from remotely_rl.trees import Tree


@dataclass(frozen=True)
class Spaces:
    """The spaces of one environment.

    channels_first   an observation with three axes is known to be [channels, height, width]
    masks_in_info    actions are masked by `info`; a mask in the observation is found by itself

    Its properties raise TrainingError for unsupported spaces.
    """

    observation: gymnasium.Space[Any]
    action: gymnasium.Space[Any]
    channels_first: bool = False
    masks_in_info: bool = False

    @functools.cached_property
    def actions(self) -> Actions:
        """The actions, and the policies over them."""
        return action_spaces.of(self.action)

    @functools.cached_property
    def observations(self) -> Observations:
        """The conversion of observations, without masks."""
        return Observations(self.observation, self.channels_first)

    @property
    def mask_is_observed(self) -> bool:
        """Whether action masks are part of the observations, not of `info`."""
        space = self.observation
        return isinstance(space, gymnasium.spaces.Dict) and ACTION_MASK in space.spaces

    @property
    def is_masked(self) -> bool:
        """Whether actions are masked, by `info` or in the observations."""
        return self.masks_in_info or self.mask_is_observed

    @property
    def spec(self) -> Tree:
        """The leaves of one observation, as models take it (`observations.py`)."""
        spec = self.observations.spec
        if not self.is_masked:
            return spec
        mask = Leaf((self.actions.outputs,), np.dtype(np.bool_))
        return {OBSERVATION: spec, ACTION_MASK: mask}
