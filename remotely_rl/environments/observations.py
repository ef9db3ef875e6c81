"""Observations as models take them: one array, whatever the observation space.

a Box of uint8       uint8
any other Box        float32
a Box of three axes  taken for an image, [channels, height, width]; in the environment, the
                     channels are the first or the last axis, whichever is smaller
any other space      flattened into one float32 vector (Discrete, Tuple, Dict, ...)
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray


class Observations:
    """The observation space of B environments.

    `shape` and `dtype` are those of one observation as models take it; `space` is the
    environment's own.
    """

    def __init__(self, space: gymnasium.Space[Any], count: int):
        self.space = space
        self.shape = _shape(space)
        is_box = isinstance(space, gymnasium.spaces.Box)
        self.dtype: np.dtype[Any] = np.dtype(
            np.uint8 if is_box and space.dtype == np.uint8 else np.float32
        )
        self._batch_space = batch_space(space, count)

    def of(self, obs: Any) -> NDArray[Any]:
        """Convert what a vector environment returned to an array [B, *shape]."""
        if not isinstance(self.space, gymnasium.spaces.Box):
            rows = iterate(self._batch_space, obs)
            flat = [np.asarray(gymnasium.spaces.flatten(self.space, row)) for row in rows]
            return np.stack(flat).astype(np.float32)
        if _is_channels_last(self.space):
            obs = np.moveaxis(obs, -1, 1)
        if obs.dtype == np.uint8:
            return np.ascontiguousarray(obs)
        return np.array(obs, np.float32)


def _shape(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    if not isinstance(space, gymnasium.spaces.Box):
        return (gymnasium.spaces.flatdim(space),)
    if _is_channels_last(space):
        return (space.shape[2], space.shape[0], space.shape[1])
    return space.shape


def _is_channels_last(space: gymnasium.spaces.Box) -> bool:
    """Images have fewer channels than rows: the smaller of the first and last axis is theirs."""
    return len(space.shape) == 3 and space.shape[-1] < space.shape[0]
