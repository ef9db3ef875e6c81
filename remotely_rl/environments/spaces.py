"""Spaces: the spaces of an environment, and what models see and return in it.

They are all that an agent needs to act, so a run folder keeps them (`runs/run_folder.py`).
"""

import functools
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remotely_rl.environments import action_spaces
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.environments.observations import (
    ACTION_MASK,
    OBSERVATION,
    ObservationLeaf,
    Observations,
)
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

    def __reduce__(self) -> Any:
        """Leave out what was derived, which holds functions."""
        return Spaces, (self.observation, self.action, self.channels_first, self.masks_in_info)

    def fit(self, other: "Spaces") -> bool:
        """Whether a model for the other spaces can act in these; a mask in `info` does not count,
        since only a reset shows it."""
        ours, theirs = self.actions, other.actions
        same = ours.outputs == theirs.outputs and ours.choices == theirs.choices
        return same and self.observations.spec == other.observations.spec

    @property
    def text(self) -> str:
        """The two spaces, for messages."""
        return f"observations {self.observation} and actions {self.action}"

    @property
    def spec(self) -> Tree:
        """The leaves of one observation, as models take it (`observations.py`)."""
        spec = self.observations.spec
        if not self.is_masked:
            return spec
        mask = ObservationLeaf((self.actions.outputs,), np.dtype(np.bool_))
        return {OBSERVATION: spec, ACTION_MASK: mask}


# --- as plain values, which a run folder keeps ----------------------------------------------------


def plain(both: Spaces) -> dict[str, Any]:
    """Return spaces as JSON holds them; loading them runs no code."""
    return {
        "observation": _plain(both.observation),
        "action": _plain(both.action),
        "channels_first": both.channels_first,
        "masks_in_info": both.masks_in_info,
    }


def parsed(content: Any) -> Spaces:
    """Return the spaces of `plain`.  Raises ValueError for anything else."""
    try:
        return Spaces(
            _parsed(content["observation"]),
            _parsed(content["action"]),
            bool(content["channels_first"]),
            bool(content["masks_in_info"]),
        )
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"these are no spaces: {error!r}") from error


def _plain(space: gymnasium.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Dict():
            parts: Any = [[key, _plain(part)] for key, part in space.items()]
            return {"kind": "Dict", "parts": parts}
        case spaces.Tuple():
            return {"kind": "Tuple", "parts": [_plain(part) for part in space]}
        case spaces.Box():
            return {
                "kind": "Box",
                "low": _bound(space.low),
                "high": _bound(space.high),
                "shape": list(space.shape),
                "dtype": np.dtype(space.dtype).name,
            }
        case spaces.Discrete():
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            return {
                "kind": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
            }
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "shape": list(space.shape)}
    raise TypeError(f"{space} trains nowhere")


def _bound(bound: NDArray[Any]) -> Any:
    """Return the bounds of a Box, as one number if they are alike."""
    first = bound.flat[0]
    return first.item() if (bound == first).all() else bound.tolist()


def _parsed(content: Any) -> gymnasium.Space[Any]:
    match content["kind"]:
        case "Dict":
            return spaces.Dict([(key, _parsed(part)) for key, part in content["parts"]])
        case "Tuple":
            return spaces.Tuple([_parsed(part) for part in content["parts"]])
        case "Box":
            shape, dtype = tuple(content["shape"]), np.dtype(content["dtype"]).type
            low, high = (
                np.broadcast_to(np.array(content[end], dtype), shape) for end in ("low", "high")
            )
            return spaces.Box(low, high, shape, dtype)
        case "Discrete":
            return spaces.Discrete(content["n"], start=content["start"])
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.array(content["nvec"]), start=np.array(content["start"]))
        case "MultiBinary":
            shape = content["shape"]
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    raise ValueError(f"there is no space {content['kind']!r}")
