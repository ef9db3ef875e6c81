"""Wrappers in a file of their own, as users have them."""

from typing import Any

import gymnasium


class Half(gymnasium.RewardWrapper[Any, Any]):
    """Half of the reward, or another part."""

    def __init__(self, env: gymnasium.Env[Any, Any], part: float = 0.5):
        super().__init__(env)
        self.part = part

    def reward(self, reward: Any) -> float:
        return float(reward) * self.part


def nothing(env: gymnasium.Env[Any, Any]) -> None:
    """A wrapper that forgets to return."""


def needs_more(env: gymnasium.Env[Any, Any], size: int) -> gymnasium.Env[Any, Any]:
    """A wrapper that cannot be called with an environment alone."""
    return env
