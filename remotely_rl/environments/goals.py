"""Goals: what an environment says of a goal that was achieved, in place of the one it had set.

The interface is that of Gymnasium-Robotics' goal environments: observations are a Dict with
`observation`, `achieved_goal` and `desired_goal`, and the environment has
`compute_reward(achieved, desired, info)`, and perhaps `compute_terminated`, which take a goal or a
batch of goals.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from remotely_rl.environments.contract import Environments
from remotely_rl.errors import TrainingError

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


class Judgement(NamedTuple):
    """What an environment says of goals that are achieved, [N] each."""

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_] | None  # None: as the environment said of its own goal


# From goals achieved and desired, [N, ...] each.
Judge = Callable[[NDArray[Any], NDArray[Any]], Judgement]


def judge_of(envs: Environments) -> Judge:
    """Return the judge of these environments, which stay open.

    Raises TrainingError if they have no goals.
    """
    space = envs.space
    parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
    if not {ACHIEVED, DESIRED} <= parts.keys() or parts[ACHIEVED].shape != parts[DESIRED].shape:
        raise TrainingError(
            f"hindsight needs observations with {ACHIEVED!r} and {DESIRED!r} of the same shape, as"
            f" those of Gymnasium-Robotics; the observation space is {space}"
        )
    env: Any = getattr(envs.vector, "envs", [envs.vector])[0]
    found = [_function(env, name) for name in ("compute_reward", "compute_terminated")]
    reward, terminated = found
    if reward is None:
        raise TrainingError(
            "hindsight needs an environment with compute_reward(achieved_goal, desired_goal, info),"
            " to reward goals other than its own"
        )
    dtype = parts[DESIRED].dtype

    def judge(achieved: NDArray[Any], desired: NDArray[Any]) -> Judgement:
        goals = achieved.astype(dtype), desired.astype(dtype)
        return Judgement(
            _for_each(reward, *goals).astype(np.float32),
            None if terminated is None else _for_each(terminated, *goals).astype(np.bool_),
        )

    return judge


def _function(env: Any, name: str) -> Callable[..., Any] | None:
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    return getattr(env.unwrapped, name, None)


def _for_each(
    function: Callable[..., Any], achieved: NDArray[Any], desired: NDArray[Any]
) -> NDArray[Any]:
    """Return a function's results [N]; one that takes no batch is called for each pair."""
    with contextlib.suppress(Exception):  # its own error, if there is one, comes from one pair
        batch = np.asarray(function(achieved, desired, {}))
        if batch.shape == achieved.shape[:1]:
            return batch
    pairs = zip(achieved, desired, strict=True)
    return np.array([function(one, other, {}) for one, other in pairs])
