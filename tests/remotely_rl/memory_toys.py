"""Problems that need a memory, as vector environments in numpy."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from remotely_rl import algorithms
from remotely_rl.runs.training import Result

# About twice the steps of the slowest seed of the slowest algorithm.
STEPS = 300_000
ALGORITHMS = ["a2c", "ppo", "impala", "appo", "a3c", "dqn"]


def train(name: str, env: Any, seed: int, run: Path) -> Result:
    """Train an LSTM with an algorithm's defaults until the target or STEPS."""
    algorithm = algorithms.named(name)
    config = algorithm.Config(
        env=env,
        lstm=64,
        target=TARGETS[env],
        total_steps=STEPS,
        seed=seed,
        anneal_steps=algorithm.Config.horizon,  # most finish much earlier
        log_interval_s=1e6,
        checkpoint_interval_s=1e6,
    )
    result: Result = algorithm.train(config, run=run)
    return result


class HiddenVelocities(CartPoleVectorEnv):
    """CartPole without its velocities, which the agent must infer from earlier observations."""

    def __init__(self, num_envs: int = 1):
        super().__init__(num_envs)
        box = self.single_observation_space
        assert isinstance(box, gymnasium.spaces.Box)
        self.single_observation_space = gymnasium.spaces.Box(box.low[::2], box.high[::2])
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        anew = (options or {}).get("reset_mask")
        if anew is None:
            obs, info = super().reset(seed=seed)
            return obs[:, ::2], info
        assert self.state is not None
        self.state[:, anew] = self.np_random.uniform(self.low, self.high, (4, anew.sum()))
        self.steps[anew], self.prev_done[anew] = 0, False
        return self.state.T[:, ::2].astype(np.float32), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs[:, ::2], reward, terminated, truncated, info


class TMaze(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A corridor whose first place shows the direction to take at its end, 5 steps later.

    As in Bakker 2001: the reward is 4 for the right turn, and -0.1 for the wrong one and for each
    step against a wall.  A turn ends the episode; 20 steps truncate it.  The observation is
    [the sign (-1 or 1, only at the start), in the corridor, at the crossing].
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    LENGTH = 5
    LEFT, RIGHT, AHEAD, BACK = range(4)

    def __init__(self, num_envs: int = 1):
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.right, self.place, self.now = np.zeros((3, num_envs), np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._begin((options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_)))
        return self._obs(), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        crossing = self.place == self.LENGTH
        turned = crossing & (action <= self.RIGHT)
        right = turned & (action == self.right)
        before = self.place
        walked = np.select([action == self.AHEAD, action == self.BACK], [1, -1], 0)
        self.place = (before + walked).clip(0, self.LENGTH)
        reward = np.select([right, self.place == before], [4.0, -0.1], 0.0)
        self.now += 1
        truncated = ~turned & (self.now == 4 * self.LENGTH)
        self._begin(turned | truncated)
        return self._obs(), reward, turned, truncated, {}

    def _begin(self, reset: np.ndarray) -> None:
        self.right[reset] = self.np_random.integers(2, size=reset.sum())
        self.place[reset], self.now[reset] = 0, 0

    def _obs(self) -> np.ndarray:
        start, crossing = self.place == 0, self.place == self.LENGTH
        sign = (2 * self.right - 1) * start
        return np.stack([sign, ~start & ~crossing, crossing], 1).astype(np.float32)


# The target: a mean of 30 returns.
TARGETS: dict[Any, float] = {HiddenVelocities: 475.0, TMaze: 3.8}

# Algorithm, problem and seed of runs that are known to reach it.
RUNS = [
    *((name, env, seed) for name in ALGORITHMS[:-1] for env in TARGETS for seed in range(1, 6)),
    *(("dqn", TMaze, seed) for seed in range(1, 4)),
]
