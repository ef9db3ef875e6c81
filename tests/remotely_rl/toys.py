"""Small environments that give away what was done to them."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Counting(gymnasium.Env[np.ndarray, Any]):
    """Observes how many steps its episode has; ends after `length`, terminated or truncated.

    The reward is the step's number, times 10 to tell it from a clipped one.
    """

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-100, 100, (1,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 3, truncates: bool = False):
        self.length = length
        self.truncates = truncates
        self.now = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.now += 1
        over = self.now == self.length
        reward = 10.0 * self.now
        return self._obs(), reward, over and not self.truncates, over and self.truncates, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.now], np.float32)


class Continuous(Counting):
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


class FromFive(Counting):
    """Numbers its actions from 5."""

    action_space = gymnasium.spaces.Discrete(2, start=5)


class Picture(Counting):
    """Images with the channels last, as Gymnasium's renderers make them."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 9, 3), np.uint8)

    def _obs(self) -> np.ndarray:
        image = np.zeros((8, 9, 3), np.uint8)
        image[:, :, 1] = self.now
        return image


class Guess(gymnasium.Env[np.ndarray, Any]):
    """One step an episode: the reward is 1 for the action that the observation names."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.right = int(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._obs(), float(action == self.right), True, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([1 - self.right, self.right], np.float32)


def counting_vector(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([Counting] * num_envs)


def vector(env: type[Counting], count: int, mode: AutoresetMode, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: env(**kwargs)] * count, autoreset_mode=mode)
