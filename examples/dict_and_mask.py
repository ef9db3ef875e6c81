"""Observations of several parts, and actions that are not always legal.

    python examples/dict_and_mask.py

A robot looks for a lamp in a room with walls.  It observes a dict: a picture of the room, and how
full its battery is.  It may not walk into a wall: `info["action_mask"]` says which of the four ways
are open.  The network that fits is made by itself, with convolutions for the picture; a model of
your own gets the dict, `obs["room"]` and `obs["battery"]`.
"""

import contextlib
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remotely_rl import ppo

SIZE = 6
WAYS = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])  # north, east, south, west
STEPS = 20  # that the battery lasts

Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]


class Room(gymnasium.Env[Observation, Any]):
    """Reaching the lamp gives 1, and walking costs a little of the battery."""

    observation_space: gymnasium.Space[Any] = spaces.Dict(
        {
            "room": spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),  # walls, lamp, robot
            "battery": spaces.Box(0, 1, (1,), np.float32),
        }
    )
    action_space = spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.walls = self.np_random.random((SIZE, SIZE)) < 0.2
        places = self.np_random.permutation(SIZE * SIZE)[:2]
        self.lamp, self.robot = (np.array(divmod(int(place), SIZE)) for place in places)
        self.walls[tuple(self.lamp)] = self.walls[tuple(self.robot)] = False
        self.left = STEPS
        if not self.mask().any():  # walled in: another room
            return self.reset()
        return self.observe(), {"action_mask": self.mask()}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, Info]:
        self.robot = self.robot + WAYS[action]
        self.left -= 1
        found = bool((self.robot == self.lamp).all())
        reward = float(found)
        return self.observe(), reward, found, self.left == 0, {"action_mask": self.mask()}

    def mask(self) -> NDArray[np.int8]:
        """Which of the four ways are open."""
        there = self.robot + WAYS
        inside = ((there >= 0) & (there < SIZE)).all(1)
        inside[inside] = ~self.walls[tuple(there[inside].T)]
        return np.array(inside, np.int8)

    def observe(self) -> Observation:
        room = np.zeros((SIZE, SIZE, 3), np.uint8)
        room[self.walls, 0] = 255
        room[(*self.lamp, 1)] = 255
        room[(*self.robot, 2)] = 255
        return {"room": room, "battery": np.array([self.left / STEPS], np.float32)}


def main(minutes: float = 2.0) -> None:
    result = ppo.train(ppo.Config(env=Room, gamma=0.95, minutes=minutes, target=0.9))
    print(f"mean return {result.return_mean:.2f}, {result.ended}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        main()
