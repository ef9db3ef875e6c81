"""Stable-Baselines3's tests of vector environments, with `sb3.VecEnv` in SubprocVecEnv's place.

What is adapted: `start_method` is ignored.
"""

from typing import Any

import stable_baselines3.common.vec_env

from remotely_rl import sb3


class SubprocVecEnv(sb3.VecEnv):
    def __init__(self, env_fns: Any, start_method: str | None = None) -> None:
        super().__init__(list(env_fns), monitor=False)


stable_baselines3.common.vec_env.SubprocVecEnv = SubprocVecEnv

from tests.test_vec_check_nan import *  # noqa: E402, F403
from tests.test_vec_envs import *  # noqa: E402, F403
from tests.test_vec_extract_dict_obs import *  # noqa: E402, F403
from tests.test_vec_monitor import *  # noqa: E402, F403
from tests.test_vec_normalize import *  # noqa: E402, F403
from tests.test_vec_stacked_obs import *  # noqa: E402, F403
