"""Observations as models take them: a tree of arrays, nested like the observation space.

    space                      a leaf of the tree, for B environments
    Box of bytes               uint8 [B, ...]
    any other Box              float32 [B, ...]
    Discrete                   int64 [B]
    MultiDiscrete              int64 [B, ...]
    MultiBinary                int8 [B, ...]
    Dict, Tuple                a dict or a tuple of these

A Box without axes is a vector of one number.  A Box with three axes is an image, [channels, height,
width]; in the environment its channels are the first or the last axis, whichever is smaller.  A Box
with four axes, of which the last is at most 4, is a stack of colour images: its frames become
channels too.

If actions are masked (`masks.py`), the tree is {"observation": the above, "action_mask": bool
[B, outputs]}.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.errors import TrainingError
from remotely_rl.trees import Tree

COLOURS = 4  # maximum number of an image's channels: red, green, blue and alpha
# Keys of the tree if actions are masked.
OBSERVATION, ACTION_MASK = "observation", "action_mask"
AGENT = "agent_index"  # beside OBSERVATION: the observer, if agents have their own parameters


@dataclass(frozen=True)
class ObservationLeaf:
    """One array of an observation.

    shape    of one observation, as models take it
    dtype    as models take it
    counts   of a Discrete or MultiDiscrete: the number of values of each entry; else empty
    starts   the smallest of these values
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    counts: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))


class Observations:
    """Converts observations of a vector environment; `spec` is the tree of the leaves."""

    def __init__(self, space: gymnasium.Space[Any], channels_first: bool = False):
        """`channels_first`: a single Box has its channels first, whatever its shape.

        Raises TrainingError, which names the space, if it is not supported.
        """
        self.space = space
        if channels_first and isinstance(space, spaces.Box):
            dtype: type[np.generic] = np.uint8 if space.dtype == np.uint8 else np.float32
            self.spec: Tree = ObservationLeaf(space.shape, np.dtype(dtype))
            self._converters: Tree = lambda obs: _contiguous(obs, dtype)
        else:
            self.spec = spec_of(space)
            self._converters = _converters(space)

    def of(self, obs: Any) -> Tree:
        """Return a tree of arrays [B, ...], valid until the environments' next step."""
        return trees.map_tree(_convert, self._converters, obs)

    @property
    def shape(self) -> Tree:
        """The shape of one observation: a tuple for each leaf."""
        return trees.map_tree(lambda leaf: leaf.shape, self.spec)


def spec_of(space: gymnasium.Space[Any], path: trees.Path = ()) -> Tree:
    """Return the tree of a space's leaves.  Raises TrainingError for an unsupported space."""
    where = f"observation{trees.named(path)}" if path else "this environment's observation space"
    check_is_not_empty(space, where)
    match space:
        case spaces.Dict():
            return {key: spec_of(part, (*path, key)) for key, part in space.items()}
        case spaces.Tuple():
            return tuple(spec_of(part, (*path, i)) for i, part in enumerate(space))
        case spaces.Box():
            dtype = np.uint8 if space.dtype == np.uint8 else np.float32
            return ObservationLeaf(_shape(space.shape), np.dtype(dtype))
        case spaces.Discrete():
            return ObservationLeaf((), np.dtype(np.int64), (int(space.n),), (int(space.start),))
        case spaces.MultiDiscrete():
            counts, starts = (tuple(map(int, x.flatten())) for x in (space.nvec, space.start))
            return ObservationLeaf(space.shape, np.dtype(np.int64), counts, starts)
        case spaces.MultiBinary():
            return ObservationLeaf(space.shape, np.dtype(np.int8))
    raise TrainingError(
        f"{where} is {space}; supported are Box, Discrete, MultiDiscrete, MultiBinary, and Dict"
        " and Tuple of these: wrap the environment to have one of these"
    )


def check_is_not_empty(space: gymnasium.Space[Any], where: str) -> None:
    """Raise TrainingError for a space without parts, or with an axis of length 0."""
    sizes = (len(space),) if isinstance(space, (spaces.Dict, spaces.Tuple)) else space.shape
    if 0 in (sizes or ()):
        raise TrainingError(f"{where} is {space}, which is empty: leave it out")


Convert = Callable[[NDArray[Any]], NDArray[Any]]


def _convert(convert: Convert, obs: Any) -> NDArray[Any]:
    return convert(np.asarray(obs))


def _converters(space: gymnasium.Space[Any]) -> Tree:
    match space:
        case spaces.Dict():
            return {key: _converters(part) for key, part in space.items()}
        case spaces.Tuple():
            return tuple(_converters(part) for part in space)
        case spaces.Box():
            dtype: type[np.generic] = np.uint8 if space.dtype == np.uint8 else np.float32
            return _box(space.shape, dtype)
        case spaces.MultiBinary():
            return lambda obs: np.array(obs, np.int8)
    return lambda obs: np.array(obs, np.int64)


def _box(shape: tuple[int, ...], dtype: type[np.generic]) -> Convert:
    if not shape:
        return lambda obs: _contiguous(obs, dtype).reshape(-1, 1)
    if is_channels_last(shape):
        return lambda obs: _contiguous(np.moveaxis(obs, -1, 1), dtype)
    if _is_stack_in_colour(shape):
        to = _shape(shape)
        return lambda obs: _contiguous(np.moveaxis(obs, -1, 2), dtype).reshape(len(obs), *to)
    return lambda obs: _contiguous(obs, dtype)


def _contiguous(obs: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    if dtype == np.uint8:
        return np.ascontiguousarray(obs)
    return np.array(obs, dtype, order="C")


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if is_channels_last(shape):
        return (shape[2], shape[0], shape[1])
    if _is_stack_in_colour(shape):
        return (shape[0] * shape[3], shape[1], shape[2])
    return shape or (1,)


def is_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether the last axis is the channels: images have fewer channels than rows."""
    return len(shape) == 3 and shape[-1] < shape[0]


def _is_stack_in_colour(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[-1] <= COLOURS < min(shape[1:3])
