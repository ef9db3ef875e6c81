"""Small problems of every kind of space, each learnt in seconds.

An episode has eight steps, whose rewards are between 0 and 1, so a perfect agent's return is 8.
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remotely_rl import algorithms
from remotely_rl.runs.training import Result
from tests.remotely_rl import toys

LENGTH = 8
STEPS = 120_000  # four times those of the slowest
LSTM = 64  # units
LEARN_Q = ("pqn", "n_step_q", "dqn", "c51", "qr_dqn", "rainbow")
FOR_BOXES = ("sac", "td3", "crossq")  # for continuous actions
DISCRETE_TOO = ("sac",)  # of these

# Settings for short problems and one actor.
SETTINGS: dict[str, Any] = {"actors": 1, "envs_per_actor": 16, "gamma": 0.5, "random_start": 0}
FROM_REPLAY: dict[str, Any] = {
    "learn_from": 500,
    "replay_rows": 20_000,
    "batch_size": 64,
    "explore_steps": 3000,
    "target_update_interval": 500,
    "n_step": 1,
    "learning_rate": 1e-3,
    "learner_threads": 1,
}
OF_ALGORITHM: dict[str, dict[str, Any]] = {
    "a2c": {"entropy_coef": 0.003},
    "a3c": {"entropy_coef": 0.003},
    "n_step_q": {"explore_steps": 10_000},
    "pqn": {"explore_steps": 10_000, "minibatches": 4, "learning_rate": 3e-3, "learner_threads": 1},
    "dqn": FROM_REPLAY,
    "c51": {**FROM_REPLAY, "value_bound": 2.0},
    "qr_dqn": {**FROM_REPLAY, "quantiles": 20},
    "rainbow": {**FROM_REPLAY, "value_bound": 2.0},
    "sac": {
        "rollout_steps": 8,
        "learn_from": 500,
        "replay_rows": 20_000,
        "batch_size": 64,
        "replay_ratio": 8.0,
        "learning_rate": 1e-3,
        "hidden": "64,64",
        "target_entropy": 0.1,
        "learner_threads": 1,
    },
    **{
        name: {"entropy_coef": 0.003, "rollout_steps": 16, "learner_threads": 1}
        for name in ("ppo", "impala", "appo", "ga3c")
    },
}

Info = dict[str, Any]


class Toy(gymnasium.Env[Any, Any]):
    """An environment that draws a secret in each step and rewards the action that names it."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.now = 0
        self.draw()
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        assert self.action_space.contains(action), action
        reward, lost = self.judge(action)
        self.now += 1
        self.draw()
        return self.observe(), reward, lost or self.now == LENGTH, False, self.info()

    def draw(self) -> None:
        raise NotImplementedError

    def observe(self) -> Any:
        raise NotImplementedError

    def judge(self, action: Any) -> tuple[float, bool]:
        """Return the reward, and whether the episode is lost."""
        raise NotImplementedError

    def info(self) -> Info:
        return {}


class ImageAndVector(Toy):
    """A dict observation: the bright half of an image and the sign of a number name the action."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Dict({"image": spaces.Box(0, 255, (8, 6, 1), np.uint8)}),
            "speed": spaces.Box(-1, 1, (1,), np.float64),
        }
    )
    action_space = spaces.Discrete(4)

    def draw(self) -> None:
        self.half, self.sign = map(int, self.np_random.integers(2, size=2))

    def observe(self) -> Any:
        image = np.zeros((8, 6, 1), np.uint8)
        image[4 * self.half : 4 * self.half + 4] = 200
        return {"camera": {"image": image}, "speed": np.array([2.0 * self.sign - 1])}

    def judge(self, action: Any) -> tuple[float, bool]:
        return float(action == 2 * self.half + self.sign), False


class Masked(Toy):
    """Eight actions, of which the mask allows an even and an odd one.

    The observed number names the right one.  An illegal action loses the episode.
    """

    observation_space: gymnasium.Space[Any] = spaces.Box(0, 1, (1,), np.float32)
    action_space: gymnasium.Space[Any] = spaces.Discrete(8, start=1)

    def draw(self) -> None:
        self.odd = int(self.np_random.integers(2))
        self.legal = 2 * self.np_random.integers(4, size=2) + [0, 1]

    @property
    def mask(self) -> NDArray[np.int8]:
        mask = np.zeros(8, np.int8)
        mask[self.legal] = self.now < LENGTH  # no action is legal at the end
        return mask

    def observe(self) -> Any:
        return np.array([self.odd], np.float32)

    def judge(self, action: Any) -> tuple[float, bool]:
        if not self.mask[action - 1]:
            return 0.0, True
        return float((action - 1) % 2 == self.odd), False

    def info(self) -> Info:
        return {"action_mask": self.mask}


class MaskObserved(Masked):
    """The same with the mask in the observation, as in PettingZoo."""

    observation_space = spaces.Dict(
        {"observation": spaces.Box(0, 1, (1,), np.float32), "action_mask": spaces.MultiBinary(8)}
    )

    def observe(self) -> Any:
        return {"observation": super().observe(), "action_mask": self.mask}

    def info(self) -> Info:
        return {}


class MaskedChoices(Masked):
    """Two choices of eight, each with a mask; the second needs the other parity."""

    action_space = spaces.MultiDiscrete([8, 8])

    def judge(self, action: Any) -> tuple[float, bool]:
        first, one = super().judge(action[0] + 1)
        second, other = super().judge(action[1] + 1)
        return (first + 1 - second) / 2, one or other

    def info(self) -> Info:
        return {"action_mask": (self.mask, self.mask)}


class Numbers(Toy):
    """A tuple of discrete observations; the first and the third determine the action."""

    observation_space = spaces.Tuple(
        [spaces.Discrete(3, start=5), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 4])]
    )
    action_space = spaces.MultiBinary(2)

    def draw(self) -> None:
        self.a = int(self.np_random.integers(3))
        self.b = int(self.np_random.integers(2))

    def observe(self) -> Any:
        noise = self.np_random.integers(2, size=2).astype(np.int8)
        return self.a + 5, noise, np.array([self.b, self.np_random.integers(4)])

    def judge(self, action: Any) -> tuple[float, bool]:
        return 0.5 * float(action[0] == (self.a == 1)) + 0.5 * float(action[1] == self.b), False


class OneNumber(Toy):
    """A discrete observation whose parity is the action."""

    observation_space = spaces.Discrete(6, start=-2)
    action_space = spaces.Discrete(2)

    def draw(self) -> None:
        self.seen = int(self.np_random.integers(-2, 4))

    def observe(self) -> Any:
        return self.seen

    def judge(self, action: Any) -> tuple[float, bool]:
        return float(action == self.seen % 2), False


class ArmAndHand(Toy):
    """A nested action: a direction, a number near the observed one, and a choice of the hand."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Dict(
        {
            "arm": spaces.Tuple([spaces.Box(-2, 2, (1,), np.float32)]),
            "hand": spaces.Discrete(3, start=1),
        }
    )

    def draw(self) -> None:
        self.place = float(self.np_random.choice([-1.0, 1.0]))
        self.grip = int(self.np_random.integers(3))

    def observe(self) -> Any:
        return np.array([self.place, self.grip - 1], np.float32)

    def judge(self, action: Any) -> tuple[float, bool]:
        near = max(0.0, 1 - abs(float(action["arm"][0][0]) - self.place))
        return 0.5 * near + 0.5 * float(action["hand"] == self.grip + 1), False


# Returns that need every part of the observation.
TARGETS: dict[type[Toy], float] = {
    ImageAndVector: 7.2,
    Masked: 7.2,
    MaskObserved: 7.2,
    MaskedChoices: 7.2,
    Numbers: 7.2,
    OneNumber: 7.2,
    ArmAndHand: 6.4,
}
# Action spaces for algorithms of values; the others need a policy.
OF_Q = (ImageAndVector, Masked, MaskObserved, OneNumber)


def takes(name: str, env: type[Toy], units: int = 0) -> bool:
    """Return whether an algorithm can train in an environment with an LSTM of this size."""
    if name in FOR_BOXES and name not in DISCRETE_TOO:
        return False
    needs_q = name in LEARN_Q or name in FOR_BOXES
    return (not needs_q or env in OF_Q) and (not units or name in toys.WITH_LSTM)


def train(name: str, env: type[Toy], seed: int, run: Path, units: int = 0) -> Result:
    """Train until the target or STEPS."""
    algorithm = algorithms.named(name)
    config = algorithm.Config(
        env=env,
        seed=seed,
        target=TARGETS.get(env),
        total_steps=STEPS,
        log_interval_s=1e6,
        checkpoint_interval_s=1e6,
        **SETTINGS,
        **OF_ALGORITHM[name],
        **({"lstm": units} if units else {}),
    )
    result: Result = algorithm.train(config, run=run)
    return result
