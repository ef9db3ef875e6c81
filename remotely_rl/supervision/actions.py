"""Actions as bytes, so that a flight record can keep the last ones.

Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these have a fixed size.  Actions
of any other space cannot be kept.  How a space is laid out is plain data (lists and strings), since
whoever reads a record has nothing else.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

# A leaf is ["", dtype, shape], a tuple ["()", parts], a dict ["{}", keys, parts].
Plan = list[Any]


def plan_of(space: gymnasium.Space[Any]) -> Plan | None:
    """Return how actions of a space are laid out; None if they cannot be."""
    match space:
        case spaces.Discrete():
            first, last = int(space.start), int(space.start + space.n) - 1
            dtype = np.promote_types(np.min_scalar_type(first), np.min_scalar_type(last))
            return ["", dtype.str, []]
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            assert space.dtype is not None
            return ["", space.dtype.str, list(space.shape or ())]
        case spaces.Tuple():
            parts = [plan_of(part) for part in space]
            return None if None in parts else ["()", parts]
        case spaces.Dict():
            parts = [plan_of(part) for part in space.values()]
            return None if None in parts else ["{}", list(space.keys()), parts]
    return None


def conform(space: gymnasium.Space[Any], value: Any) -> Any:
    """Return an action that has been through JSON as its space has it."""
    match space:
        case spaces.Discrete():
            return int(value)
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return np.asarray(value, space.dtype).reshape(space.shape)
        case spaces.Tuple():
            return tuple(conform(part, item) for part, item in zip(space, value, strict=True))
        case spaces.Dict():
            return {key: conform(part, value[key]) for key, part in space.items()}
    return value


def leaves(plan: Plan | None) -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
    """Yield dtype and shape of each leaf."""
    if plan is None:
        return
    if not plan[0]:
        yield np.dtype(plan[1]), tuple(plan[2])
    else:
        for part in plan[-1]:
            yield from leaves(part)


def scatter(plan: Plan, batch: Any, arrays: Iterator[NDArray[Any]], at: int) -> None:
    """Write a batch of actions, as Gymnasium batches them, to row `at` of each leaf's array."""
    if not plan[0]:
        next(arrays)[at] = np.asarray(batch)
    elif plan[0] == "()":
        for part, item in zip(plan[1], batch, strict=True):
            scatter(part, item, arrays, at)
    else:
        for part, key in zip(plan[2], plan[1], strict=True):
            scatter(part, batch[key] if isinstance(batch, Mapping) else None, arrays, at)


def gather(plan: Plan, arrays: Iterator[NDArray[Any]], at: tuple[int, int]) -> Any:
    """Return one action from the arrays of the leaves."""
    if not plan[0]:
        action = np.array(next(arrays)[at])
        return action if action.ndim else action.item()
    if plan[0] == "()":
        return tuple(gather(part, arrays, at) for part in plan[1])
    return {key: gather(part, arrays, at) for part, key in zip(plan[2], plan[1], strict=True)}
