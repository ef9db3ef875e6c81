"""Environment with faults that a test chooses: what goes wrong, and where."""

from typing import Any

import gymnasium
import numpy as np

Row = tuple[np.ndarray, dict[str, Any]]
NAN = np.full(2, np.nan, np.float32)


class Faults:
    """Faults by place, each used once; they are shared by all environments made with it."""

    def __init__(self, **faults: str):
        self.pending = {where.replace("_", " "): fault for where, fault in faults.items()}
        self.made = self.closed = 0
        self.seeds: list[int | None] = []

    def at(self, where: str) -> str | None:
        fault = self.pending.pop(where, None)
        if fault == "raise":
            raise RuntimeError(f"the simulator broke at {where}")
        return fault

    def make(self) -> "Fragile":
        return Fragile(self)


class Fragile(gymnasium.Env[np.ndarray, Any]):
    """Observes its step and a random number; ends after `length` steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)
    length = 1_000_000

    def __init__(self, faults: Faults):
        self.faults = faults
        faults.made += 1
        faults.at("make")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Row:
        super().reset(seed=seed)
        self.now = 0
        self.faults.seeds.append(seed)
        if self.faults.at("reset") == "nan":
            return NAN, {}
        return self._obs(), {"began": True}

    def step(self, action: Any) -> Any:
        self.now += 1
        obs: Any = self._obs()
        reward: Any = 1.0
        match self.faults.at(f"step {self.now}"):
            case "nan observation":
                obs = NAN
            case "nan reward":
                reward = float("nan")
            case "shape":
                obs = np.zeros(5, np.float32)
            case "array of reward":
                reward = np.ones(1)
            case "no reward":
                reward = None
            case "four values":
                return obs, reward, False, {}
            case "array of ends":
                return obs, reward, np.ones(2, np.bool_), False, {}
            case "list of infos":
                return obs, reward, False, False, []
        return obs, reward, self.now >= self.length, False, {}

    def close(self) -> None:
        self.faults.closed += 1

    def _obs(self) -> np.ndarray:
        return np.array([self.now, self.np_random.integers(1000)], np.float32)
