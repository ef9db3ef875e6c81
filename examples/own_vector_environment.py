"""Your own vector environment: many copies, stepped together.

    python examples/own_vector_environment.py

Any callable that takes `num_envs` and returns a gymnasium.vector.VectorEnv works.  This one uses
numpy: motors push points along a line.  The action is a force, so the policy is Gaussian.  One
actor steps 256 points at the cost of a few.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from remotely_rl import ppo


class Points(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Bring each point to rest at zero.  Episodes are truncated after 100 steps."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
        self.single_action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1, 1, (self.num_envs, 2))
        self.age = self.np_random.integers(0, 100, self.num_envs)  # not all truncated at once
        return self.state.astype(np.float32), {}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        resets = self.age >= 100  # truncated at the previous step: this one only resets them
        position, speed = self.state.T
        speed = np.clip(speed + 0.1 * actions[:, 0], -1, 1)
        position = np.clip(position + 0.1 * speed, -10, 10)
        self.state = np.stack((position, speed), 1)
        self.state[resets] = self.np_random.uniform(-1, 1, (int(resets.sum()), 2))
        self.age = np.where(resets, 0, self.age + 1)
        reward = np.where(resets, 0.0, -np.abs(position))
        never = np.zeros(self.num_envs, np.bool_)
        return self.state.astype(np.float32), reward, never, self.age >= 100, {}


def main(minutes: float = 1.0) -> None:
    config = ppo.Config(
        env=Points,
        actors=1,
        envs_per_actor=256,
        rollout_steps=32,
        minutes=minutes,
        target=-12.0,
        log_interval_s=2.0,
    )
    result = ppo.train(config)
    print(f"mean return {result.return_mean:.1f}, {result.ended}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
