"""Rows: the observations of n environments, in arrays as Gymnasium batches them.

Each observation is checked against its space as it is written, and all of them together for NaN and
infinity.  The arrays may be memory shared with another process.

`checked_reset`, `reward_of` and `fault_of` check the other results of `reset` and `step`.
"""

import math
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remotely_rl import trees

ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
NAME = "the observation"

Write = Callable[[int, Any], None]


class NotFinite(ValueError):
    """An environment returned NaN or infinity."""


class WrongShape(ValueError):
    """An environment returned an observation outside its space."""


class WrongRow(ValueError):
    """`reset` or `step` of an environment broke Gymnasium's interface."""


class SpaceLeaf(NamedTuple):
    """A part of a space that is one array: its path (`['image'][0]`), shape and dtype."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def leaves_of(space: gymnasium.Space[Any], path: str = "") -> Iterator[SpaceLeaf]:
    """Yield the leaves of a space.  Raises TypeError, naming its path, for one without arrays."""
    match space:
        case spaces.Dict():
            for key, part in space.items():
                yield from leaves_of(part, f"{path}[{key!r}]")
        case spaces.Tuple():
            for i, part in enumerate(space):
                yield from leaves_of(part, f"{path}[{i}]")
        case _ if isinstance(space, ARRAYS):
            assert space.dtype is not None
            yield SpaceLeaf(path, tuple(space.shape or ()), space.dtype)
        case _:
            raise TypeError(f"{NAME}{path} is of {space}, which is not an array")


def covering(each: Sequence[gymnasium.Space[Any]]) -> gymnasium.Space[Any]:
    """Return a space with the observations of all of these, which differ in their bounds at most.

    Raises ValueError for spaces whose observations cannot be rows of one array.
    """
    first = each[0]
    if all(space == first for space in each):
        return first
    kinds = {type(space) for space in each}
    if kinds == {spaces.Box} and len({(space.shape, space.dtype) for space in each}) == 1:
        lows, highs = zip(*((space.low, space.high) for space in each), strict=True)  # type: ignore[attr-defined]
        low, high = np.min(lows, axis=0), np.max(highs, axis=0)
        return spaces.Box(low, high, dtype=first.dtype)  # type: ignore[arg-type]
    if kinds == {spaces.Discrete} and len({space.dtype for space in each}) == 1:
        start = min(int(space.start) for space in each)  # type: ignore[attr-defined]
        end = max(int(space.start + space.n) for space in each)  # type: ignore[attr-defined]
        return spaces.Discrete(end - start, start=start)
    if kinds == {spaces.Dict} and len({tuple(space) for space in each}) == 1:  # type: ignore[arg-type]
        return spaces.Dict({key: covering([space[key] for space in each]) for key in first})  # type: ignore[index, attr-defined]
    if kinds == {spaces.Tuple} and len({len(space) for space in each}) == 1:  # type: ignore[arg-type]
        return spaces.Tuple([covering(parts) for parts in zip(*each, strict=True)])
    raise ValueError(f"{list(dict.fromkeys(map(str, each)))}: they do not share a shape and dtype")


class EnvRows:
    """The current observation of each of `count` environments."""

    def __init__(
        self,
        space: gymnasium.Space[Any],
        count: int,
        arrays: Sequence[NDArray[Any]] | None = None,
        objects: Sequence[list[Any]] | None = None,
    ):
        """`arrays` and `objects` hold the leaves, [count, ...]; by default they are created."""
        self._space = space
        self._count = count
        self.arrays: list[NDArray[Any]] = []
        self._names: list[str] = []  # of the arrays
        self._boxes: list[tuple[str, NDArray[Any], NDArray[Any], NDArray[Any]]] = []  # and bounds
        self.objects: list[list[Any]] = []  # of the leaves that are not arrays
        self._given = arrays, objects
        self._tree, self.write = self._leaf(space, NAME)
        self._floats = [
            (name, array.reshape(-1), array.reshape(count, -1))
            for name, array in zip(self._names, self.arrays, strict=True)
            if np.issubdtype(array.dtype, np.floating)
        ]

    def value(self, copy: bool) -> Any:
        """Return all observations, as a vector environment does."""
        return trees.map_tree(_copied if copy else _as_it_is, self._tree)

    def row(self, i: int) -> Any:
        """Return a copy of one environment's observation."""
        return trees.map_tree(
            lambda part: part[i].copy() if isinstance(part[i], np.ndarray) else part[i], self._tree
        )

    def copy_row(self, i: int, other: "EnvRows") -> None:
        """Copy one environment's observation from other rows."""
        for array, theirs in zip(self.arrays, other.arrays, strict=True):
            array[i] = theirs[i]
        for objects, those in zip(self.objects, other.objects, strict=True):
            objects[i] = those[i]

    def check_row(self, i: int) -> None:
        """Raise NotFinite, naming the leaf, if one environment's observation is not finite."""
        for name, _, rows in self._floats:
            if not np.isfinite(rows[i]).all():
                bad = np.flatnonzero(~np.isfinite(rows[i]))
                raise NotFinite(
                    f"{name} has {len(bad):,} numbers that are NaN or infinite, the first"
                    f" {rows[i, bad[0]]} at {bad[0]} of {rows.shape[1]}"
                )

    def outside(self) -> str:
        """Describe the first number outside the bounds of its Box; return "" if there is none."""
        for name, array, low, high in self._boxes:
            wrong = np.argwhere((array < low) | (array > high))
            if len(wrong):
                _, *at = wrong[0].tolist()
                place, bounds = f" at {at}" if at else "", (low[tuple(at)], high[tuple(at)])
                return (
                    f"{name} has {array[tuple(wrong[0])]}{place}; its space has {bounds[0]} to"
                    f" {bounds[1]}"
                )
        return ""

    def are_finite(self) -> bool:
        """Whether all observations are finite, by a quick test; it may be false for large numbers.

        The sum of squares takes half the time of `isfinite(...).all()`.  It is never finite if
        there is NaN or infinity, and may overflow for large finite numbers.
        """
        for _, flat, _ in self._floats:  # noqa: SIM110 - runs in each step; a generator is slower
            if not math.isfinite(np.vdot(flat, flat)):
                return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = [array.copy() for array in self.arrays]
        return EnvRows, (self._space, self._count, arrays, self.objects)

    # --- leaves -----------------------------------------------------------------------------------

    def _leaf(self, space: gymnasium.Space[Any], name: str) -> tuple[trees.Tree, Write]:
        """Return the tree of a part of the space, and a writer of observations."""
        arrays, objects = self._given
        match space:
            case spaces.Dict():
                parts = {key: self._leaf(part, f"{name}[{key!r}]") for key, part in space.items()}
                tree: trees.Tree = {key: tree for key, (tree, _) in parts.items()}
                return tree, _dict_writer({key: write for key, (_, write) in parts.items()}, name)
            case spaces.Tuple():
                items = [self._leaf(part, f"{name}[{i}]") for i, part in enumerate(space)]
                tree = tuple(tree for tree, _ in items)
                return tree, _tuple_writer([write for _, write in items], name)
            case _ if not isinstance(space, ARRAYS):
                held = objects[len(self.objects)] if objects else [None] * self._count
                self.objects.append(held)
                return held, held.__setitem__
        shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        array = arrays[len(self.arrays)] if arrays else np.zeros((self._count, *shape), dtype)
        self.arrays.append(array)
        self._names.append(name)
        write = _array_writer(array, name) if shape else _scalar_writer(array, name)
        if isinstance(space, spaces.Box):
            self._boxes.append((name, array, space.low, space.high))
            return array, write
        return array, _checked(write, space, name)


def _copied(part: Any) -> Any:
    return part.copy() if isinstance(part, np.ndarray) else tuple(part)


def _as_it_is(part: Any) -> Any:
    return part if isinstance(part, np.ndarray) else tuple(part)


def _array_writer(array: NDArray[Any], name: str) -> Write:
    shape, dtype = array.shape[1:], array.dtype

    def write(i: int, obs: Any) -> None:
        if type(obs) is not np.ndarray or obs.shape != shape or obs.dtype is not dtype:
            obs = _conform(obs, shape, dtype, name)
        array[i] = obs

    return write


def _scalar_writer(array: NDArray[Any], name: str) -> Write:
    def write(i: int, obs: Any) -> None:
        if type(obs) is not int:
            obs = _conform(obs, (), array.dtype, name)
        array[i] = obs

    return write


def _checked(write: Write, space: gymnasium.Space[Any], name: str) -> Write:
    """Return a writer that also checks values, which would make a network fail much later."""
    first: Any
    end: Any
    match space:
        case spaces.Discrete():
            return _checked_number(write, int(space.start), int(space.start + space.n), name)
        case spaces.MultiDiscrete():
            first, end = space.start, space.start + space.nvec
        case _:
            first, end = 0, 2

    def write_all(i: int, obs: Any) -> None:
        write(i, obs)
        values = np.asarray(obs)
        wrong = (values < first) | (values >= end)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0].tolist())
            raise WrongShape(f"{name} has {values[at]} at {list(at)}, which is not of {space}")

    return write_all


def _checked_number(write: Write, first: int, end: int, name: str) -> Write:
    def write_one(i: int, obs: Any) -> None:
        write(i, obs)
        if not first <= obs < end:
            raise WrongShape(f"{name} is {obs}; its space has {first} to {end - 1}")

    return write_one


def _conform(obs: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    array = np.asarray(obs)
    if array.shape != shape:
        raise WrongShape(f"{name} has shape {array.shape}; its space has {shape}")
    if not can_hold(dtype, array):
        raise WrongShape(f"{name} has dtype {array.dtype}; its space has {dtype}")
    return array


def can_hold(dtype: np.dtype[Any], array: NDArray[Any]) -> bool:
    """Whether a dtype holds these numbers: integers keep their values, others are of its kind."""
    if array.dtype.kind in "iu" and dtype.kind in "iub":
        return bool((array == array.astype(dtype)).all())
    return np.can_cast(array.dtype, dtype, "same_kind")


def _dict_writer(writes: dict[str, Write], name: str) -> Write:
    def write(i: int, obs: Any) -> None:
        if len(obs) != len(writes) or any(key not in obs for key in writes):
            raise WrongShape(f"{name} has the keys {sorted(obs)}; its space has {sorted(writes)}")
        for key, write_part in writes.items():
            write_part(i, obs[key])

    return write


def _tuple_writer(writes: list[Write], name: str) -> Write:
    def write(i: int, obs: Any) -> None:
        if len(obs) != len(writes):
            raise WrongShape(f"{name} has {len(obs)} parts; its space has {len(writes)}")
        for write_part, part in zip(writes, obs, strict=True):
            write_part(i, part)

    return write


NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.bool_})
STEP = "(observation, reward, terminated, truncated, info)"


def checked_reset(row: Any) -> tuple[Any, dict[str, Any]]:
    """Return the observation and the info of a reset.  Raises WrongRow for anything else.

    Unpacking alone would accept an observation of two numbers.
    """
    if isinstance(row, (tuple, list)) and len(row) == 2 and isinstance(row[1], dict):
        return row[0], row[1]
    raise WrongRow(
        f"`reset` returned {_described(row)}: it must return (observation, info), info a dict"
    )


def reward_of(reward: Any, info: Any) -> float:
    """Return a reward as a float.  Raises WrongRow unless it is a number, and the info a dict.

    `step` calls this only if the reward's type is not in NUMBERS, or the info's is not dict.
    """
    if not isinstance(info, dict):
        raise WrongRow(f"`step` returned an info that is {_described(info)}: it must be a dict")
    try:
        if np.shape(reward) == ():
            return float(reward)
    except (TypeError, ValueError):
        pass
    raise WrongRow(f"the reward is {_described(reward)}: it must be one number")


def fault_of(row: Any, error: Exception) -> Exception:
    """Return the fault of a step's row, or `error` if the row is not at fault; () is no row."""
    if isinstance(row, (tuple, list)) and len(row) == 5:
        for name, value in zip(("terminated", "truncated"), row[2:4], strict=True):
            if np.ndim(value):
                return WrongRow(f"{name} is {_described(value)}: it must be True or False")
        return error
    if isinstance(row, tuple) and not row:
        return error
    hint = ""
    if isinstance(row, tuple) and len(row) == 4:
        hint = "; the old `done` is now `terminated`, or `truncated` at a time limit"
    return WrongRow(f"`step` returned {_described(row)}: it must return {STEP}{hint}")


def _described(value: Any) -> str:
    """Describe a value briefly: by its number of parts, its shape, or its repr."""
    if isinstance(value, (tuple, list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    if np.ndim(value):
        return f"{reprlib.repr(np.asarray(value).tolist())} of shape {np.shape(value)}"
    return reprlib.repr(value)
