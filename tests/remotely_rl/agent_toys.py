"""Small games of several agents with PettingZoo's interface, without PettingZoo."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Rows = dict[str, Any]


class Party:
    """Agents a, b and c, who join and leave by a script.

    They observe [the number of the step, their own number].  The reward is the step's number, and
    100 more for b.  `script` has a word with the present agents for the reset and for each step: a
    capital letter dies in this step; a letter that is only missing in the next word leaves
    unreported.
    """

    possible_agents: Sequence[str] = ("a", "b", "c")
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, script: str = "abc abc ABC", masked: bool = False):
        self.script = script.split()
        self.masked = masked
        self.agents: list[str] = []
        self.seeds: list[int | None] = []  # of the resets
        self.taken: list[dict[str, int]] = []  # each step's actions
        self.is_closed = False

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        box = spaces.Box(-1, 1_000, (2,), np.float32)
        if not self.masked:
            return box
        return spaces.Dict({"observation": box, "action_mask": spaces.MultiBinary(3)})

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Rows, Rows]:
        self.seeds.append(seed)
        self.now = 0
        self.agents = list(self.script[0])
        return self.seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Rows, Rows, Rows, Rows, Rows]:
        self.taken.append(actions)
        before, self.now = self.agents, self.now + 1
        word = self.script[self.now]
        self.agents = [agent for agent in word if agent.islower()]
        told = [agent for agent in self.possible_agents if agent in word.lower()]
        dies = {agent: agent.upper() in word for agent in told}
        rewards = {a: float(self.now + 100 * (a == "b")) for a in told if a in before}
        never = dict.fromkeys(told, False)
        return self.seen(told), rewards, dies, never, {agent: {} for agent in told}

    def seen(self, agents: Sequence[str]) -> Rows:
        return {agent: self.observe(agent) for agent in agents}

    def observe(self, agent: str) -> Any:
        number = self.possible_agents.index(agent)
        obs = np.array([self.now, number], np.float32)
        if not self.masked:
            return obs
        mask = np.zeros(3, np.int8)
        mask[number] = 1
        return {"observation": obs, "action_mask": mask}

    def render(self) -> Any:
        return np.full((8, 8, 3), self.now, np.uint8)

    def close(self) -> None:
        self.is_closed = True


class Roles(Party):
    """Games of one step: an agent is rewarded for the action of its own number."""

    def __init__(self) -> None:
        super().__init__("abc ABC")

    def step(self, actions: dict[str, int]) -> tuple[Rows, Rows, Rows, Rows, Rows]:
        obs, _, terminated, truncated, infos = super().step(actions)
        reward = {a: float(self.possible_agents.index(a) == actions[a]) for a in actions}
        return obs, reward, terminated, truncated, infos

    def observe(self, agent: str) -> Any:
        return np.zeros(2, np.float32)


class Race:
    """Players who take turns of one to three steps; the first at `length` wins.

    They observe [their distance from the end]; a mask forbids steps beyond it.
    """

    metadata: dict[str, Any] = {"name": "race_v0"}  # noqa: RUF012

    def __init__(self, length: int = 7, players: int = 2, masks_in_info: bool = False):
        self.possible_agents = [f"player_{i}" for i in range(players)]
        self.length = length
        self.masks_in_info = masks_in_info
        self.seeds: list[int | None] = []
        self.moves: list[tuple[str, int]] = []

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        box = spaces.Box(0, 100, (1,), np.float32)
        if self.masks_in_info:
            return box
        return spaces.Dict({"observation": box, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.seeds.append(seed)
        self.left, self.turn = self.length, 0
        self.winner: str | None = None

    @property
    def agent_selection(self) -> str:
        return self.possible_agents[self.turn]

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_over = self.winner is not None
        reward = (1.0 if self.winner == self.agent_selection else -1.0) if is_over else 0.0
        mask = np.array([self.left > i for i in range(3)], np.int8)
        obs = np.array([self.left], np.float32)
        if self.masks_in_info:
            return obs, reward, is_over, False, {"action_mask": mask}
        return {"observation": obs, "action_mask": mask}, reward, is_over, False, {}

    def step(self, action: int | None) -> None:
        if action is not None:
            assert self.winner is None
            assert action < self.left
            self.moves.append((self.agent_selection, int(action)))
            self.left -= int(action) + 1
            if self.left == 0:
                self.winner = self.agent_selection
        self.turn = (self.turn + 1) % len(self.possible_agents)

    def render(self) -> Any:
        return np.full((8, 8, 3), self.left, np.uint8)

    def close(self) -> None:
        pass
