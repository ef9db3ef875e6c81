"""An environment that numbers its steps and fails at random, and an oracle that checks the rows.

An observation is [life, episode, step, length]: the id of the environment, its episode, the step of
the episode, and the length of the episode.  The reward follows from these.  So any row that is
wrong, repeated, or of another environment is detected.
"""

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from remotely_rl.supervision.vector import CRASH

LONGEST = 60
FAULTS = ("kill", "segfault", "exception", "hang", "hang with the GIL")


def strike(fault: str) -> None:
    """Fail in this way."""
    match fault:
        case "kill":
            os.kill(os.getpid(), 9)
        case "segfault":
            ctypes.string_at(0)
        case "exception":
            raise RuntimeError("the simulator broke")
        case "hang":
            threading.Event().wait()
        case "hang with the GIL":
            ctypes.PyDLL(None).sleep(10**6)


def reward_of(obs: Any) -> float:
    """Return the reward of the step that produced an observation."""
    life, episode, step, length = (int(number) for number in obs)
    return float((life * 31 + episode * 17 + step * 7 + length) % 101) / 101


class Numbered(gymnasium.Env[np.ndarray, Any]):
    """See the module's docstring."""

    observation_space = gymnasium.spaces.Box(0, 1 << 20, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, faults: tuple[str, ...] = (), chance: float = 0.0, journal: str = ""):
        """Fail in each step with a chance; record when and how in a file first."""
        self.draw = random.Random(os.urandom(16))
        self.life = self.draw.randrange(1 << 20)
        self.episode = 0
        self.faults, self.chance, self.journal = faults, chance, journal

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.now = 0
        self.length = self.draw.randint(1, LONGEST)
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.draw.random() < self.chance:
            fault = self.draw.choice(self.faults)
            with Path(self.journal).open("a") as file:
                file.write(f"{time.monotonic()} {fault}\n")
            strike(fault)
        self.now += 1
        obs = self._obs()
        over = self.now == self.length
        return obs, reward_of(obs), over and self.length % 2 == 0, over and self.length % 2 == 1, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.life, self.episode, self.now, self.length], np.float32)


class Oracle:
    """A checker of the rows of a vector environment, from `reset` on; `wrong` lists the errors."""

    def __init__(self, mode: AutoresetMode):
        self.mode = mode
        self.wrong: list[str] = []
        self.rows = self.crashed = 0
        self.last: Any = None
        self.ended: Any = None

    def reset(self, obs: np.ndarray) -> None:
        for i in range(len(obs)):
            self._expect(i, obs[i, 2] == 0, f"reset to {obs[i]}")
        self.last, self.ended = obs.copy(), np.zeros(len(obs), np.bool_)

    def step(
        self, obs: np.ndarray, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> None:
        in_same_step = self.mode is AutoresetMode.SAME_STEP
        crashed = info.get(f"_{CRASH}", np.zeros(len(obs), np.bool_))
        for i in range(len(obs)):
            over = bool(terminated[i] or truncated[i])
            seen = info["final_obs"][i] if in_same_step and over else obs[i]
            row = f"{self.last[i]} -> {seen}, {reward[i]}, {terminated[i]}, {truncated[i]}"
            if crashed[i]:
                self.crashed += 1
                right = np.array_equal(seen, self.last[i]) and reward[i] == 0
                right = right and truncated[i] and not terminated[i]
                self._expect(i, right and not self.ended[i], f"crashed, and {row}")
            elif self.ended[i]:
                self._expect(i, seen[2] == 0 and reward[i] == 0 and not over, f"to begin: {row}")
            else:
                right = np.array_equal(seen, self.last[i] + [0, 0, 1, 0])
                right = right and np.isclose(reward[i], reward_of(seen))
                ends = seen[2] == seen[3]
                right = right and terminated[i] == (ends and seen[3] % 2 == 0)
                self._expect(i, right and truncated[i] == (ends and seen[3] % 2 == 1), row)
            if in_same_step and over:
                self._expect(i, obs[i, 2] == 0, f"after the end: {obs[i]}")
            self.rows += 1
        self.last = obs.copy()
        if not in_same_step:
            self.ended = terminated | truncated

    def _expect(self, i: int, right: Any, what: str) -> None:
        if not right:
            self.wrong.append(f"environment {i}: {what}")


def makes(
    count: int, faults: tuple[str, ...], chance: float, folder: Path
) -> list[Callable[[], Numbered]]:
    """Return a factory for each environment, each with its own journal in the folder."""
    import functools

    return [
        functools.partial(Numbered, faults, chance, str(folder / f"faults-{i}"))
        for i in range(count)
    ]
