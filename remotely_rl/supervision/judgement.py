"""Judgements of an environment on goals other than its own, in whatever Python that runs."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from remotely_rl.errors import TrainingError

OF_REWARD, OF_END = "compute_reward", "compute_terminated"


class Judgement(NamedTuple):
    """What an environment says of goals that are achieved, [N] each."""

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_] | None  # None: as the environment said of its own goal


def check_judges(env: Any) -> None:
    """Raise TrainingError if an environment cannot reward goals other than its own."""
    if _function(env, OF_REWARD) is None:
        raise TrainingError(
            f"hindsight needs an environment with {OF_REWARD}(achieved_goal, desired_goal, info),"
            " to reward goals other than its own"
        )


def judgement_of(env: Any, achieved: NDArray[Any], desired: NDArray[Any]) -> Judgement:
    """Return the judgement of an environment, or of a vector environment, on goals [N, ...]."""
    reward, terminated = _function(env, OF_REWARD), _function(env, OF_END)
    assert reward is not None, "see `check_judges`"
    return Judgement(
        _for_each(reward, achieved, desired).astype(np.float32),
        None if terminated is None else _for_each(terminated, achieved, desired).astype(np.bool_),
    )


def _function(env: Any, name: str) -> Callable[..., Any] | None:
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    return getattr(env, name, None)


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
