"""Your own environment: any Gymnasium environment class, or a function that makes one.

    python examples/own_environment.py

A robot walks down a hall to a fork.  A lamp at the entrance shows which way to turn, but at the
fork the robot no longer sees it.  A model without memory gets half of the rewards; one with an
LSTM (`lstm=32`) gets all of them.  The class needs no registration: it is sent to the actors.
"""

from typing import Any

import gymnasium
import numpy as np

from remotely_rl import ppo


class Fork(gymnasium.Env[np.ndarray, Any]):
    """Three steps down the hall; the fourth turns left (0) or right (1)."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)  # lamp, distance walked
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.right = int(self.np_random.integers(2))
        self.walked = 0
        return np.array([2 * self.right - 1, 0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.walked += 1
        over = self.walked == 4
        reward = float(over and action == self.right)
        return np.array([0, self.walked / 4], np.float32), reward, over, False, {}


def main(minutes: float = 0.5) -> None:
    for lstm in (0, 32):
        config = ppo.Config(
            env=Fork, lstm=lstm, minutes=minutes, target=0.95, rollout_steps=16, log_interval_s=1.0
        )
        result = ppo.train(config)
        if result.is_interrupted:
            return
        print(f"lstm={lstm}: mean return {result.return_mean:.2f}, {result.ended}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
