"""Gymnasium's tests of vector environments, with `VectorEnv` in AsyncVectorEnv's place.

What is adapted: `shared_memory`, `context` and `daemon` are ignored.
"""

from typing import Any

import gymnasium.vector
import gymnasium.vector.async_vector_env

import remotely_rl


class AsyncVectorEnv(remotely_rl.VectorEnv):
    def __init__(
        self,
        env_fns: Any,
        shared_memory: bool = True,
        copy: bool = True,
        context: object = None,
        daemon: bool = True,
        **how: Any,
    ) -> None:
        super().__init__(list(env_fns), copy=copy, **how)


gymnasium.vector.AsyncVectorEnv = AsyncVectorEnv  # type: ignore[assignment,misc]
gymnasium.vector.async_vector_env.AsyncVectorEnv = AsyncVectorEnv  # type: ignore[assignment,misc]

from tests.vector.test_async_vector_env import *  # noqa: E402, F403
from tests.vector.test_autoreset_mode import *  # noqa: E402, F403
from tests.vector.test_observation_mode import *  # noqa: E402, F403
from tests.vector.test_vector_env import *  # noqa: E402, F403
from tests.vector.test_vector_env_info import *  # noqa: E402, F403
from tests.vector.test_vector_wrapper import *  # noqa: E402, F403
