"""Wrappers in a file, as users write them."""

from typing import Any

import gymnasium


class Half(gymnasium.RewardWrapper[Any, Any]):
    """A wrapper that multiplies the reward by `part`."""

    def __init__(self, env: gymnasium.Env[Any, Any], part: float = 0.5):
        super().__init__(env)
        self.part = part

    def reward(self, reward: Any) -> float:
        return float(reward) * self.part


def nothing(env: gymnasium.Env[Any, Any]) -> None:
    """A wrapper that forgets to return."""


def needs_more(env: gymnasium.Env[Any, Any], size: int) -> gymnasium.Env[Any, Any]:
    """A wrapper that needs another argument."""
    return env
