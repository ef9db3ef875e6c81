"""Dict observations and action masks.

    python examples/dict_and_mask.py

A robot looks for a lamp in a room with walls.  It observes a dict: an image of the room, and the
charge of its battery.  It may not walk into a wall: `info["action_mask"]` marks which of the four
directions are open.  The default network is built to fit, with convolutions for the image; your own
model receives the dict, `obs["room"]` and `obs["battery"]`.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from remotely_rl import ppo

SIZE = 6
DIRECTIONS = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])  # north, east, south, west
STEPS = 20  # for which the battery lasts

Observation = dict[str, NDArray[Any]]
Info = dict[str, Any]


class Room(gymnasium.Env[Observation, Any]):
    """A reward of 1 for reaching the lamp before the battery is empty."""

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
        self.steps_left = STEPS
        if not self.mask().any():  # the robot is walled in: draw another room
            return self.reset()
        return self.observe(), {"action_mask": self.mask()}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, Info]:
        self.robot = self.robot + DIRECTIONS[action]
        self.steps_left -= 1
        found = bool((self.robot == self.lamp).all())
        reward = float(found)
        return self.observe(), reward, found, self.steps_left == 0, {"action_mask": self.mask()}

    def mask(self) -> NDArray[np.int8]:
        """Return 1 for each open direction."""
        there = self.robot + DIRECTIONS
        inside = ((there >= 0) & (there < SIZE)).all(1)
        inside[inside] = ~self.walls[tuple(there[inside].T)]
        return np.array(inside, np.int8)

    def observe(self) -> Observation:
        room = np.zeros((SIZE, SIZE, 3), np.uint8)
        room[self.walls, 0] = 255
        room[(*self.lamp, 1)] = 255
        room[(*self.robot, 2)] = 255
        return {"room": room, "battery": np.array([self.steps_left / STEPS], np.float32)}


def main(minutes: float = 2.0) -> None:
    result = ppo.train(ppo.Config(env=Room, gamma=0.95, minutes=minutes, target=0.9))
    print(f"mean return {result.return_mean:.2f}, {result.ended}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
