"""Environments of EnvPool (https://github.com/sail-sg/envpool), stepped together in C++.

    --env envpool:CarRacing-v3      a name of `envpool.list_all_envs()`, after `envpool:`

An actor has one thread for them; `--env-arg num_threads=N` gives it more.  This module adapts
EnvPool's differences from a Gymnasium vector environment: it takes seeds only at construction, and
a partial reset returns only the rows that were reset.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.environments import additions
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.supervision import seeds

PREFIX = "envpool:"
RESERVED = ("num_envs", "batch_size", "seed", "env_seed")  # EnvPool's arguments that are set here
SEED_LIMIT = 1 << 31  # EnvPool's seeds are smaller
ROW_KEYS = ("env_id", "players")  # of infos: which rows these are


def is_id(source: Any) -> bool:
    """Whether a source is the id of one of EnvPool's environments."""
    return isinstance(source, str) and source.startswith(PREFIX)


def maker(env_id: str) -> Callable[..., VectorEnv[Any, Any, Any]]:
    """Return a function that makes environments, from `num_envs` and their arguments."""

    def make(num_envs: int, **kwargs: Any) -> EnvPool:
        return EnvPool(env_id, num_envs, **kwargs)

    make.__qualname__ = env_id
    return make


def check_is_known(env_id: str, kwargs: Mapping[str, Any]) -> None:
    """Raise TrainingError if there is no EnvPool, no such environment, or no such argument."""
    envpool = _imported(env_id)
    name, known = env_id.removeprefix(PREFIX), envpool.list_all_envs()
    if name not in known:
        raise TrainingError(f"EnvPool has no environment {name!r}{nearest(name, known)}")
    takes = [*envpool.make_spec(name)._config_keys, "render_mode"]
    additions.check_known(env_id, kwargs, [name for name in takes if name not in RESERVED])


class EnvPool(VectorEnv[Any, Any, NDArray[Any]]):
    """EnvPool's environments as a Gymnasium vector environment."""

    def __init__(self, env_id: str, count: int, **kwargs: Any):
        name = env_id.removeprefix(PREFIX)
        self._envpool = functools.partial(
            _imported(env_id).make_gymnasium, name, num_envs=count, **{"num_threads": 1, **kwargs}
        )
        self.num_envs = count
        self.render_mode = kwargs.get("render_mode")
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": ["rgb_array"]}
        self._pool = self._make([seeds.draw() for _ in range(count)])
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self._obs: Any = None  # the last ones

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or without seeds those of options["reset_mask"]."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            if seed is not None:
                given = seeds.of_each(seed, self.num_envs)
                self._pool.close()
                self._pool = self._make([seeds.draw() if each is None else each for each in given])
            obs, info = self._pool.reset()
            self._obs = trees.map_tree(np.array, obs)
            return obs, _without_row_keys(info)
        obs, _ = self._pool.reset(np.flatnonzero(mask).astype(np.int32))
        self._obs = trees.map_tree(functools.partial(_put, mask), self._obs, obs)
        return trees.map_tree(np.array, self._obs), {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step each environment, or reset it if its episode is over."""
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        self._obs = trees.map_tree(np.array, obs)  # a copy, because the caller owns `obs`
        return obs, reward, terminated, truncated, _without_row_keys(info)

    def render(self) -> tuple[Any, ...]:
        """Return an image of each environment."""
        return tuple(self._pool.render(np.arange(self.num_envs)))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        self._pool.close()

    def _make(self, given: Sequence[int]) -> Any:
        pool = self._envpool(seed=[seed % SEED_LIMIT for seed in given])
        with warnings.catch_warnings():  # that EnvPool rounds bounds to float32
            warnings.simplefilter("ignore")
            _ = pool.observation_space, pool.action_space  # cached from here on
        return pool


def _imported(env_id: str) -> Any:
    try:
        import envpool  # noqa: PLC0415 - an extra, and its import registers 1,600 environments
    except ImportError as error:
        raise TrainingError(
            f"{env_id} needs EnvPool ({error}): pip install '.[envpool]' in a checkout of remotely"
        ) from error
    return envpool


def _without_row_keys(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name not in ROW_KEYS}


def _put(mask: NDArray[np.bool_], all_rows: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    merged = all_rows.copy()
    merged[mask] = rows
    return merged
