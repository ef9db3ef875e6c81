"""VecEnv for Stable-Baselines3: a one-line change in your script.

    from remotely_rl.sb3 import VecEnv

    envs = VecEnv("CartPole-v1", 8)  # in place of make_vec_env(..., vec_env_cls=SubprocVecEnv)
    PPO("MlpPolicy", envs).learn(100_000)

Environments that crash, die or hang are replaced (`remotely_rl.VectorEnv`).  Their episodes are
truncated, as by a time limit: info has `TimeLimit.truncated` and `terminal_observation`, from
which Stable-Baselines3 bootstraps, and `crash_report`.

It needs the package stable_baselines3, which is not a dependency of this one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from remotely_rl.supervision import infos
from remotely_rl.supervision.vector import CRASH
from remotely_rl.vector import VectorEnv
from remotely_rl.vector.vector_env import makes_of

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import base_vec_env
except ImportError as error:
    raise ImportError(
        "remotely_rl.sb3 needs Stable-Baselines3: pip install stable-baselines3"
    ) from error

Make = Callable[[], gymnasium.Env[Any, Any]]


class VecEnv(base_vec_env.VecEnv):  # type: ignore[misc]
    """See the module's docstring."""

    def __init__(
        self,
        env: str | Make | Sequence[Make],
        n_envs: int | None = None,
        *,
        env_kwargs: dict[str, Any] | None = None,
        monitor: bool = True,
        **settings: Any,
    ):
        """Make the environments; `settings` are those of `remotely_rl.VectorEnv`.

        `env_kwargs` are for `gymnasium.make`, if `env` is an id.  `monitor` wraps each in a
        Monitor, as `make_vec_env` does, so that training reports the returns of episodes.
        """
        makes = makes_of(env, n_envs, env_kwargs or {})
        if monitor:
            makes = [partial(_monitored, make) for make in makes]
        self.envs = VectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP, **settings)
        self.reset_infos: list[dict[str, Any]]
        super().__init__(
            self.envs.num_envs, self.envs.single_observation_space, self.envs.single_action_space
        )

    def reset(self) -> Any:
        """Reset all environments; return their observations."""
        given = [dict(one) if one else {} for one in self._options]
        obs: Any = None
        infos: list[dict[str, Any]] = [{} for _ in given]
        left = list(range(self.num_envs))
        while left:  # those with the same options at once
            options = given[left[0]]
            same = [i for i in left if given[i] == options]
            left = [i for i in left if given[i] != options]
            if len(same) < self.num_envs:
                options = {**options, "reset_mask": np.isin(np.arange(self.num_envs), same)}
            obs, info = self.envs.reset(seed=self._seeds, options=options or None)
            each = self._split(info)
            for i in same:
                infos[i] = each[i]
        self.reset_infos = infos
        self._reset_seeds()
        self._reset_options()
        return obs

    def step_async(self, actions: Any) -> None:
        """Begin a step; actions that are dicts or tuples come in a list, one for each."""
        space = self.envs.single_action_space
        if isinstance(space, spaces.Dict | spaces.Tuple) and isinstance(actions, list):
            batch: Any = create_empty_array(space, len(actions))
            actions = concatenate(space, actions, batch)
        self.envs.step_async(actions)

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[Any]]:
        """Finish the step; where an episode ended, the observation is the first of the next one."""
        obs, rewards, terminated, truncated, info = self.envs.step_wait()
        dones = terminated | truncated
        each = self._split(info)
        for i in np.flatnonzero(dones):
            first = each[i]
            first.pop(CRASH, None)  # it is in the final info too
            each[i] = {
                **first.pop("final_info", {}),
                "terminal_observation": first.pop("final_obs"),
            }
            self.reset_infos[i] = first
        for one, is_cut in zip(each, (truncated & ~terminated).tolist(), strict=True):
            one["TimeLimit.truncated"] = is_cut
        return obs, rewards.astype(np.float32), dones, each

    def close(self) -> None:
        """End the actors."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Read an attribute of some environments, or of all."""
        return self.envs.call_at(self._which(indices), attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of some environments, or of all, and of their replacements."""
        which = self._which(indices)
        self.envs.set_attr_at(which, attr_name, [value] * len(which))

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of some environments, or of all."""
        which = self._which(indices)
        return self.envs.call_at(which, method_name, *args, **kwargs)

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return which environments have a wrapper of a class."""
        return self.envs.are_wrapped(self._which(indices), wrapper_class)

    def get_images(self) -> Sequence[Any]:
        """Return a frame of each environment."""
        return self.envs.render() or ()

    def _which(self, indices: Any) -> list[int]:
        """Return the numbers of some environments, or of all; negative ones count from the end."""
        return [range(self.num_envs)[i] for i in self._get_indices(indices)]

    def _split(self, info: dict[str, Any]) -> list[dict[str, Any]]:
        if not info:
            return [{} for _ in range(self.num_envs)]
        return [infos.of(info, i) for i in range(self.num_envs)]


def _monitored(make: Make) -> gymnasium.Env[Any, Any]:
    env: gymnasium.Env[Any, Any] = Monitor(make())
    return env
