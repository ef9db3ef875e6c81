"""`breakpoint()` in an environment of a VectorEnv."""

import contextlib
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import remotely
from remotely.protocol.debugging import Ask
from remotely_rl import VectorEnv
from tests.clusters import wait_until
from tests.remotely.test_debugger import at_prompt


class Stops(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = 1.0
        breakpoint()  # noqa: T100 - what is tested
        return np.ones(1, np.float32), reward, False, False, {}


def test_an_environment_stops_and_is_debugged_where_it_runs(here: None) -> None:
    rewards: list[float] = []
    with contextlib.closing(VectorEnv(Stops, num_envs=1)) as envs:
        envs.reset()
        thread = threading.Thread(target=lambda: rewards.extend(envs.step(np.zeros(1, int))[1]))
        thread.start()
        wait_until(lambda: [a for a in remotely.status().actors if a.stopped_at], "it has stopped")
        (host,) = (a.name for a in remotely.status().actors if a.stopped_at)
        prompt = at_prompt(remotely.get_actor(host))
        prompt.wait()
        prompt.does("reward = 7.0")
        prompt.ask(Ask.LEAVE)
        thread.join()
    assert rewards == [7.0]
