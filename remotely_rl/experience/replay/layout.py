"""Layout: the shapes and dtypes of a row's arrays, and whether they are stacks of frames."""

import math
from collections.abc import Sequence
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
    frame    channels of a frame, if the first axis is a stack of frames: 1 for gray, 3 for colour;
             0 if the array is stored whole
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    frame: int = 0

    @property
    def stack(self) -> int:
        """The number of frames in a stack; 1 if the array is stored whole."""
        return self.shape[0] // self.frame if self.frame else 1

    @property
    def nbytes(self) -> int:
        """The size in bytes of one row's array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of one frame of a stack."""
        return (self.frame, *self.shape[1:])

    def check(self, name: str, array: NDArray[Any]) -> None:
        """Raise ReplayError, naming both, if an array [T, B, ...] differs in shape or dtype."""
        if array.shape[2:] != self.shape or array.dtype != self.dtype:
            raise ReplayError(
                f"{name} is {array.dtype} {list(array.shape[2:])}, but the replay was made for"
                f" {self.dtype} {list(self.shape)}: make another replay for it"
            )


@dataclass(frozen=True)
class Layout:
    """The shapes and dtypes of a replay's rows."""

    obs: Tree  # of leaves
    action: Leaf

    @classmethod
    def of(cls, example: Trajectory) -> "Layout":
        """Return the layout of trajectories like this one."""
        obs = trees.map_tree(lambda x: _observation(x, example.begins), example.obs)
        return cls(obs, Leaf(example.action.shape[2:], example.action.dtype))

    def check(self, trajectory: Trajectory) -> None:
        """Raise ReplayError if a trajectory has another layout."""
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
    def plain(self) -> list[tuple[list[str | int], list[int], str, int]]:
        """The leaves of the observation and the action, each with its path, as plain values."""
        leaves = [(list(path), leaf) for path, leaf in trees.items(self.obs)] + [([], self.action)]
        return [(path, list(one.shape), one.dtype.str, one.frame) for path, one in leaves]

    @classmethod
    def of_plain(cls, plain: Sequence[Sequence[Any]]) -> "Layout":
        """Return the layout with this `plain`."""
        leaves = [
            (path, Leaf(tuple(shape), np.dtype(dtype), frame))
            for path, shape, dtype, frame in plain
        ]
        return cls(_tree(leaves[:-1]), leaves[-1][1])

    @property
    def description(self) -> dict[str, list[Any]]:
        """The shapes and dtypes by name, as plain values."""
        named = {f"obs{trees.named(path)}": leaf for path, leaf in trees.items(self.obs)}
        named["action"] = self.action
        return {name: [list(leaf.shape), leaf.dtype.str] for name, leaf in named.items()}


def _tree(leaves: Sequence[tuple[Sequence[str | int], Leaf]]) -> Tree:
    """Return the tree with these leaves, given with their paths, in order."""
    if not leaves[0][0]:
        return leaves[0][1]
    parts: dict[Any, list[tuple[Sequence[str | int], Leaf]]] = {}
    for (first, *rest), leaf in leaves:
        parts.setdefault(first, []).append((rest, leaf))
    made = {key: _tree(part) for key, part in parts.items()}
    return tuple(made.values()) if isinstance(next(iter(made)), int) else made


def continues(obs: NDArray[Any], frame: int) -> NDArray[np.bool_]:
    """Return for rows 1 to T of [T + 1, B, C, H, W] whether each stack is the previous one, shifted
    by one frame of `frame` channels; compared by bits, so that NaN equals itself."""
    frames = _words(obs.reshape(*obs.shape[:2], obs.shape[2] // frame, -1))
    return np.asarray((frames[1:, :, :-1] == frames[:-1, :, 1:]).all((2, 3)))


def same(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each row of two arrays [N, ...] whether their bits are equal."""
    words = (_words(rows.reshape(len(rows), math.prod(rows.shape[1:]))) for rows in (one, other))
    return np.asarray(np.equal(*words).all(1))


def _words(rows: NDArray[Any]) -> NDArray[Any]:
    """Return a view of the last axis as the largest integers that fit, which compare fastest."""
    rows = np.ascontiguousarray(rows)
    nbytes = rows.shape[-1] * rows.itemsize
    size = next(size for size in (8, 4, 2, 1) if nbytes % size == 0)
    return rows.view(np.uint8).view(f"u{size}")


def _observation(array: NDArray[Any], begins: NDArray[np.bool_]) -> Leaf:
    """Return the leaf of observations [T + 1, B, ...]; images that shift in time are stacks."""
    shape, dtype = array.shape[2:], array.dtype
    if len(shape) == 3:
        for frame in range(1, shape[0]):
            if shape[0] % frame == 0 and (continues(array, frame) | begins[1:]).all():
                return Leaf(shape, dtype, frame)
    return Leaf(shape, dtype)


def _listed(paths: list[trees.Path]) -> str:
    return ", ".join(trees.named(path) or "(one array)" for path in paths)
