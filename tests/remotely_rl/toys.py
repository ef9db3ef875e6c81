"""Small environments and helpers of the tests."""

import dataclasses
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

import remotely
from remotely_rl import networks
from remotely_rl.acting.actor import Actor
from remotely_rl.algorithms import ALGORITHMS, named
from remotely_rl.config import Common
from remotely_rl.environments import Environments, Step
from remotely_rl.runs import metrics, run_folder
from remotely_rl.runs.result import Result


class Counting(gymnasium.Env[np.ndarray, Any]):
    """An environment that observes its episode's steps; it ends after `length` of them.

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


class Fragile(Counting):
    """Crashes at the 20th step of each episode."""

    def __init__(self) -> None:
        super().__init__(100)
        self.steps = 0

    def reset(self, **given: Any) -> Any:
        self.steps = 0
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 20:
            raise ValueError("the simulator broke")
        return super().step(action)


class EndsBothWays(Counting):
    """An environment that terminates and truncates in the same step."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, terminated, info


class Continuous(Counting):
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


class FromFive(Counting):
    """An environment whose actions start at 5."""

    action_space = gymnasium.spaces.Discrete(2, start=5)


class Picture(Counting):
    """An environment of images with the channels last, as Gymnasium renders."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 9, 3), np.uint8)

    def _obs(self) -> np.ndarray:
        image = np.zeros((8, 9, 3), np.uint8)
        image[:, :, 1] = self.now
        return image


class Blank(Counting):
    """An environment of any observation space; the observation never changes."""

    def __init__(self, space: gymnasium.Space[Any]):
        self.observation_space = space
        space.seed(0)
        self.seen = space.sample()
        super().__init__()

    def _obs(self) -> Any:
        return self.seen


class Guess(gymnasium.Env[np.ndarray, Any]):
    """Episodes of one step: the reward is 1 for the action that the observation names."""

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


class Tells(Guess):
    """An environment that reports in `info` whether the episode was a success."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"is_success": reward == 1.0}


def play(envs: Environments, steps: int) -> list[Step]:
    """Take `steps` steps of action 0.  The observation of row t follows step t."""
    return [envs.step(np.zeros(envs.num_envs, np.int64)) for _ in range(steps)]


def counting_vector(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([Counting] * num_envs)


def vector(env: type[Counting], count: int, mode: AutoresetMode, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: env(**kwargs)] * count, autoreset_mode=mode)


class Echo(Counting):
    """An environment that observes its last action."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)

    def __init__(self, action_space: gymnasium.Space[Any], length: int = 3):
        self.action_space = action_space
        self.last = np.zeros(2, np.float32)
        super().__init__(length)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.last = np.asarray(action, np.float32).flatten()
        return super().step(action)

    def _obs(self) -> np.ndarray:
        return self.last


class Unsaveable(Guess):
    """An environment that cannot be pickled, like ale-py's games."""

    def __reduce__(self) -> Any:
        raise TypeError("a game that is being played cannot be saved")


class Poisoned(Guess):
    """An environment whose reward is NaN."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float("nan"), terminated, truncated, info


def poisoned(num_envs: int) -> SyncVectorEnv:
    """Poisoned as a vector environment."""
    return SyncVectorEnv([Poisoned] * num_envs)


def guess_in_pairs(num_envs: int) -> SyncVectorEnv:
    """Guess with same-step resets: every row is experience."""
    return SyncVectorEnv([Guess] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def actor(config: Common, model: nn.Module, seed: int = 5, **changes: Any) -> Actor:
    """Return an actor in this process, with changes to the learner's config."""
    return remotely.local(Actor, dataclasses.replace(config, **changes), model, seed)


def no_room(*_: Any) -> None:
    """A replacement for a function that writes to a disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def network(observations: int = 2, outputs: int = 2, seed: int = 0) -> networks.MLP:
    torch.manual_seed(seed)
    return networks.MLP((observations,), outputs)


# The algorithms that train an LSTM.
WITH_LSTM = [name for name in ALGORITHMS if hasattr(named(name).Config, "lstm")]


def with_a_memory(shape: tuple[int, ...], outputs: int) -> networks.RecurrentMLP:
    return networks.RecurrentMLP(shape, outputs, 4)


def weights(model: nn.Module) -> torch.Tensor:
    """Return all values of a model's state in one row."""
    return torch.cat([part.detach().flatten().double() for part in model.state_dict().values()])


class Drawn(Counting):
    """An environment that renders an image of odd width, redder at each step."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        super().__init__()

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        picture = np.zeros((64, 401, 3), np.uint8)
        picture[:, :, 0] = 60 * self.now
        return picture


class CountsSteps(nn.Module):
    """A model whose state counts the steps; the count is the likeliest of 4 actions."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def initial_state(self, count: int) -> torch.Tensor:
        return torch.zeros(count, 1)

    def forward(
        self, obs: torch.Tensor, state: torch.Tensor, begins: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        seen = []
        for begin in begins:
            now = state * ~begin[:, None]
            seen.append(now)
            state = now + 1
        policy = -(torch.stack(seen) - torch.arange(4.0)).square()
        return policy, torch.zeros(begins.shape), state


class Aim(gymnasium.Env[np.ndarray, Any]):
    """Episodes of one step: the reward falls with the distance of the action to the observation."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.np_random.choice([-1.0, 1.0])
        return np.array([self.at], np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = 1.0 - abs(float(action[0]) - self.at)
        info = {"episode": {"reward": reward}}
        return np.array([self.at], np.float32), reward, True, False, info


class Remember(Guess):
    """Episodes of two steps: the second shows nothing and rewards what the first showed."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.asked = False
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.asked:
            return self._obs(), float(action == self.right), True, False, {}
        self.asked = True
        return np.zeros(2, np.float32), 0.0, False, False, {}


def kept(run: Path) -> list[torch.Tensor]:
    """Return all tensors and numbers of the learner in a run's checkpoint."""

    def flat(part: Any) -> Iterator[torch.Tensor]:
        if isinstance(part, dict):
            for name in part:
                yield from flat(part[name])
        elif isinstance(part, (list, tuple)):
            for item in part:
                yield from flat(item)
        elif isinstance(part, (torch.Tensor, int, float)):
            yield torch.as_tensor(part)

    return list(flat(run_folder.load_checkpoint(run / "checkpoint.pt")["learner"]))


def staleness(run: Path) -> float:
    """Return the largest staleness in a run's metrics."""
    return max(row["train/staleness_max"] for row in metrics.read(run / "metrics.csv"))


def assert_resumed_to_the_bit(
    train: Any, config: Any, steps: tuple[int, int], folder: Path
) -> Result:
    """Check that a run resumed halfway learns exactly what an unbroken run learns."""
    half, whole = (dataclasses.replace(config, total_steps=count) for count in steps)
    train(whole, run=folder / "straight")
    train(half, run=folder / "stopped")
    result: Result = train(whole, resume=folder / "stopped")
    assert_same_bits(folder / "straight", folder / "stopped")
    return result


def assert_same_bits(one: Path, other: Path) -> None:
    """Check that two runs have learnt exactly the same."""
    pairs = list(zip(kept(one), kept(other), strict=True))
    assert len(pairs) > 10
    assert all(torch.equal(a, b) for a, b in pairs)


def converted(config: Common, kind: type[Any], **changes: Any) -> Any:
    """Return another algorithm's config with the fields that both have."""
    names = [field.name for field in dataclasses.fields(kind) if hasattr(config, field.name)]
    return kind(**{name: getattr(config, name) for name in names} | changes)
