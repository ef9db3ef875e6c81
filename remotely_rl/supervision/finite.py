"""Finds NaN, infinity and wrong shapes in observations."""

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class NotFinite(ValueError):
    """An environment returned NaN or infinity."""


class WrongShape(ValueError):
    """An environment returned an observation that is not of its space."""


Check = Callable[[Any], None]


def check_reward(reward: Any) -> None:
    """Raise NotFinite for a reward that is NaN or infinite."""
    if not math.isfinite(reward):
        raise NotFinite(f"the reward is {reward}")


def checks_of(
    space: gymnasium.Space[Any], finite: bool = True, name: str = "the observation"
) -> Check:
    """Return a function that raises NotFinite or WrongShape for an observation.

    It names the leaf.  Without `finite` it looks at shapes only.  Spaces other than Box, Dict and
    Tuple have no shape to check.
    """
    match space:
        case spaces.Box():
            return _box(space, finite, name)
        case spaces.Dict():
            leaves = {key: checks_of(s, finite, f"{name}[{key!r}]") for key, s in space.items()}
            return lambda obs: _each_key(leaves, obs, name)
        case spaces.Tuple():
            items = [checks_of(s, finite, f"{name}[{i}]") for i, s in enumerate(space)]
            return lambda obs: _each_item(items, obs, name)
    return lambda obs: None


def _box(space: spaces.Box, finite: bool, name: str) -> Check:
    shape = space.shape
    finite = finite and np.issubdtype(space.dtype, np.floating)

    def check(obs: Any) -> None:
        array = obs if type(obs) is np.ndarray else np.asarray(obs)
        if array.shape != shape:
            raise WrongShape(f"{name} has shape {array.shape}; its space has {shape}")
        # The product is half as long as `isfinite(...).all()`.  It may overflow for numbers that
        # are large but finite, and never is finite for NaN or infinity.
        if finite and not math.isfinite(np.vdot(array, array)) and not np.isfinite(array).all():
            bad = np.argwhere(~np.isfinite(array))
            at = ", ".join(map(str, bad[0]))
            raise NotFinite(
                f"{name} has {len(bad):,} numbers that are NaN or infinite, the first"
                f" {array[tuple(bad[0])]} at [{at}]"
            )

    return check


def _each_key(leaves: dict[str, Check], obs: Any, name: str) -> None:
    if set(obs) != set(leaves):
        raise WrongShape(f"{name} has the keys {sorted(obs)}; its space has {sorted(leaves)}")
    for key, check in leaves.items():
        check(obs[key])


def _each_item(items: list[Check], obs: Any, name: str) -> None:
    if len(obs) != len(items):
        raise WrongShape(f"{name} has {len(obs)} parts; its space has {len(items)}")
    for check, part in zip(items, obs, strict=True):
        check(part)
