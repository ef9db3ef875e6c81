"""Hindsight: a goal that chance never reaches, learned from the goals that it reached instead.

    python examples/bit_flip.py                                    # with hindsight, then without
    remotely-rl train dqn --env examples/bit_flip.py:BitFlip --hindsight 4 --n-step 1

The task of Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495, section 3.1: n bits, each
action flips one, and the reward is -1 until they equal the goal.  An episode has n steps, so of 2^n
states chance reaches the goal in hardly any.  The environment is written against the interface of
Gymnasium-Robotics: three parts of an observation, and rewards that are computed from goals.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from numpy.typing import NDArray

from remotely_rl import dqn

Obs = dict[str, NDArray[np.float32]]


class BitFlip(gymnasium.Env[Obs, np.int64]):
    """`bits` bits, to be flipped into those of a goal."""

    def __init__(self, bits: int = 15):
        self.bits = bits
        self.action_space = Discrete(bits)
        box = Box(0.0, 1.0, (bits,))
        self.observation_space: Space[Any] = Dict(
            dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box)
        )
        self._state = self._goal = np.zeros(bits, np.float32)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._goal = self.np_random.integers(2, size=(2, self.bits)).astype(np.float32)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        self._state = self._state.copy()
        self._state[action] = 1 - self._state[action]
        self._steps += 1
        reward = float(self.compute_reward(self._state, self._goal, {}))
        terminated = bool(self.compute_terminated(self._state, self._goal, {}))
        return self._observation(), reward, terminated, self._steps >= self.bits, {}

    def compute_reward(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: dict[str, Any]
    ) -> NDArray[np.float32]:
        """Return 0 where a goal is achieved, and -1 elsewhere, of one or of a batch [N, bits]."""
        return self.compute_terminated(achieved_goal, desired_goal, info) - np.float32(1)

    def compute_terminated(
        self, achieved_goal: NDArray[Any], desired_goal: NDArray[Any], info: dict[str, Any]
    ) -> NDArray[np.bool_]:
        """Return whether goals are achieved."""
        return np.asarray((achieved_goal == desired_goal).all(-1))

    def _observation(self) -> Obs:
        state = self._state
        return {"observation": state, "achieved_goal": state, "desired_goal": self._goal}


def main(steps: int = 40_000) -> None:
    """Train with hindsight and without it; the mean return is -15 if no goal is reached."""
    for hindsight in (4, 0):
        config = dqn.Config(
            env=BitFlip,
            total_steps=steps,
            hindsight=hindsight,
            n_step=1,  # the rest of a longer window was played for another goal
            gamma=0.98,
            hidden="256",
            learn_from=1_000,
            explore_steps=15_000,
            epsilon=0.1,
            batch_size=128,
            replay_ratio=64.0,
            target_update_interval=500,
        )
        result = dqn.train(config)
        if result.is_interrupted:
            return
        print(f"hindsight {hindsight}: {result.ended}, mean return {result.return_mean:.1f}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
