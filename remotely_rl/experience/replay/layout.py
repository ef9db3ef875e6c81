"""Layout: the shapes and dtypes of a row's arrays, and which of them are stacks of frames."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.errors import ReplayError
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.trees import Tree


@dataclass(frozen=True)
class Leaf:
    """One array of a row.

    shape    of one row
    dtype    of its elements
    frame    channels of a frame, if the first axis is a stack of frames: 1 if they are gray, 3 if
             they are in colour; 0 if the array is kept whole
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    frame: int = 0

    @property
    def stack(self) -> int:
        """How many frames a stack has; 1 if the array is kept whole."""
        return self.shape[0] // self.frame if self.frame else 1

    @property
    def nbytes(self) -> int:
        """How many bytes the array of one row takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of one frame of a stack."""
        return (self.frame, *self.shape[1:])

    def check(self, name: str, array: NDArray[Any]) -> None:
        """Raise ReplayError, naming both, if an array [T, B, ...] is of other rows than these."""
        if array.shape[2:] != self.shape or array.dtype != self.dtype:
            raise ReplayError(
                f"{name} is {array.dtype} {list(array.shape[2:])}, but the replay was made for"
                f" {self.dtype} {list(self.shape)}: make another replay for it"
            )


@dataclass(frozen=True)
class Layout:
    """What a replay needs to know of its rows before it holds any."""

    obs: Tree  # of leaves
    action: Leaf

    @classmethod
    def of(cls, example: Trajectory) -> "Layout":
        """Return the layout of trajectories like this one."""
        obs = trees.map_tree(lambda x: _observation(x, example.begins), example.obs)
        return cls(obs, Leaf(example.action.shape[2:], example.action.dtype))

    def check(self, trajectory: Trajectory) -> None:
        """Raise ReplayError if a trajectory is of other rows than these."""
        ours, theirs = (
            [path for path, _ in trees.items(tree)] for tree in (self.obs, trajectory.obs)
        )
        if ours != theirs:
            raise ReplayError(
                f"the observation has the leaves {_listed(theirs)}, but the replay was made for"
                f" {_listed(ours)}: make another replay for it"
            )
        for path, leaf in trees.items(self.obs):
            leaf.check(f"obs{trees.named(path)}", trees.at(trajectory.obs, path))
        self.action.check("action", trajectory.action)

    @property
    def description(self) -> dict[str, list[Any]]:
        """The shapes and dtypes by name, of plain values."""
        named = {f"obs{trees.named(path)}": leaf for path, leaf in trees.items(self.obs)}
        named["action"] = self.action
        return {name: [list(leaf.shape), leaf.dtype.str] for name, leaf in named.items()}


def continues(obs: NDArray[Any], frame: int) -> NDArray[np.bool_]:
    """Return for rows 1 to T of [T + 1, B, C, H, W] whether each stack is the one before, moved on
    by one frame of `frame` channels; bit by bit, so that NaN equals itself."""
    frames = _words(obs.reshape(*obs.shape[:2], obs.shape[2] // frame, -1))
    return np.asarray((frames[1:, :, :-1] == frames[:-1, :, 1:]).all((2, 3)))


def same(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each row of two arrays [N, ...] whether they are equal bit by bit."""
    words = (_words(rows.reshape(len(rows), math.prod(rows.shape[1:]))) for rows in (one, other))
    return np.asarray(np.equal(*words).all(1))


def _words(rows: NDArray[Any]) -> NDArray[Any]:
    """Return what the last axis holds as the largest integers that it is made of: these compare
    fastest."""
    rows = np.ascontiguousarray(rows)
    nbytes = rows.shape[-1] * rows.itemsize
    size = next(size for size in (8, 4, 2, 1) if nbytes % size == 0)
    return rows.view(np.uint8).view(f"u{size}")


def _observation(array: NDArray[Any], begins: NDArray[np.bool_]) -> Leaf:
    """Return the leaf of observations [T + 1, B, ...]; images that move on are stacks."""
    shape, dtype = array.shape[2:], array.dtype
    if len(shape) == 3:
        for frame in range(1, shape[0]):
            if shape[0] % frame == 0 and (continues(array, frame) | begins[1:]).all():
                return Leaf(shape, dtype, frame)
    return Leaf(shape, dtype)


def _listed(paths: list[trees.Path]) -> str:
    return ", ".join(trees.named(path) or "(one array)" for path in paths)
