"""Simulated environments for tests of replays, and a slow oracle that keeps all their rows.

A world plays B environments whose pictures are all different.  It resets like vector environments,
in the step after the end (NEXT_STEP) or in the last step (SAME_STEP), and marks rows as in
`remotely_rl.environments.contract`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remotely_rl.experience.replay import Sequences
from remotely_rl.experience.trajectory import Trajectory

NEXT_STEP, SAME_STEP = "next step", "same step"
SIDE = 2  # of a picture


@dataclass
class World:
    """B environments, with the probabilities of events."""

    width: int
    seed: int = 1
    mode: str = NEXT_STEP
    stack: int = 4
    colours: int = 1
    pads_with_zeros: bool = True
    ends: float = 0.1  # probability that a row terminates, and that it is truncated
    loses_life: float = 0.1  # probability of terminated although the game goes on
    as_tree: bool = False  # observations are a dict, with a vector and a mask
    newest_first: bool = False  # so that a replay does not recognize stacks
    has_goals: bool = False  # as_tree, with goals; those that are set are never achieved
    state_width: int = 0  # of the states of a recurrent model, all different

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.clock = 0
        channels = self.stack * self.colours
        self.frames = np.zeros((self.width, channels, SIDE, SIDE), np.uint8)
        self.was_over = np.zeros(self.width, np.bool_)
        self.begins = np.ones(self.width, np.bool_)
        self.goals = np.zeros((self.width, SIDE * SIDE), np.uint8)
        for env in range(self.width):
            self._reset(env)

    def play(self, steps: int) -> Trajectory:
        """Return the next steps of all environments."""
        rows = [self._step() for _ in range(steps)]
        rows.append({"obs": self._obs(), "begins": self.begins.copy()})

        def at(name: str, count: int = steps) -> NDArray[Any]:
            return np.stack([row[name] for row in rows[:count]])

        whole: Any = at("obs", steps + 1) if not self.as_tree else None
        if self.as_tree:
            whole = {key: np.stack([row["obs"][key] for row in rows]) for key in rows[0]["obs"]}
        shape = (steps, self.width)
        return Trajectory(
            obs=whole,
            action=at("action"),
            log_prob=np.zeros(shape, np.float32),
            reward=at("reward"),
            terminated=at("terminated"),
            truncated=at("truncated"),
            valid=at("valid"),
            begins=at("begins", steps + 1),
            value=np.zeros((steps + 1, self.width), np.float32),
            state=self.random.normal(size=(self.width, self.state_width)).astype(np.float32),
            version=np.full(self.width, self.clock, np.int64),
        )

    def _step(self) -> dict[str, Any]:
        none = np.zeros(self.width, np.bool_)
        row: dict[str, Any] = {
            "obs": self._obs(),
            "begins": self.begins.copy(),
            "action": self.random.integers(0, 9, self.width),
            "reward": self.random.normal(size=self.width).astype(np.float32),
            "terminated": none.copy(),
            "truncated": none.copy(),
            "valid": ~none,
        }
        self.begins = none.copy()
        for env in range(self.width):
            if self.was_over[env]:  # this step resets: NEXT_STEP
                self.was_over[env] = False
                row["valid"][env], row["reward"][env] = False, 0
                self._reset(env)
                continue
            self.move(env)
            is_over = {}
            for name in ("terminated", "truncated"):
                is_over[name] = self.random.random() < self.ends
                row[name][env] = is_over[name]
            if any(is_over.values()) and self.mode == NEXT_STEP:
                self.was_over[env] = True
            elif any(is_over.values()):
                row["valid"][env] = is_over["terminated"]
                self._reset(env)
            elif self.random.random() < self.loses_life:
                row["terminated"][env] = True
        return row

    def _picture(self) -> NDArray[np.uint8]:
        self.clock += 1
        return np.frombuffer(np.uint32(self.clock).tobytes(), np.uint8).reshape(SIDE, SIDE)

    def move(self, env: int) -> None:
        self.frames[env, : -self.colours] = self.frames[env, self.colours :]
        for channel in range(-self.colours, 0):
            self.frames[env, channel] = self._picture()

    def _reset(self, env: int) -> None:
        picture = self._picture()
        self.frames[env] = 0 if self.pads_with_zeros else picture
        self.frames[env, -1] = picture
        self.goals[env] = picture.reshape(-1)
        self.begins[env] = True

    def _obs(self) -> Any:
        pictures = self.frames[:, ::-1].copy() if self.newest_first else self.frames.copy()
        if not self.as_tree:
            return pictures
        newest = self.frames[:, -1].reshape(self.width, -1)
        vector = newest.astype(np.float32) / 7
        goals = {"achieved_goal": vector, "desired_goal": -self.goals.astype(np.float32)}
        return {
            "observation": pictures,
            "vector": vector,
            "action_mask": newest % 3 > 0,
            **(goals if self.has_goals else {}),
        }


@dataclass
class Row:
    obs: Any
    next_obs: Any
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    version: int
    begins: bool = False
    next_begins: bool = False
    state: Any = None  # before the row, if a trajectory began there
    is_gap: bool = False  # the next row does not follow from this one


@dataclass
class Oracle:
    """All rows by column; computes one by one what can be drawn."""

    width: int
    rows: list[list[Row]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [[] for _ in range(self.width)]

    def append(self, trajectory: Trajectory, column: int = 0) -> None:
        for env in range(trajectory.width):
            rows = self.rows[column + env]
            for t in range(trajectory.steps):
                obs = _pick(trajectory.obs, t, env)
                if t == 0 and rows and not _same(rows[-1].next_obs, obs):
                    last = rows[-1]
                    gap = Row(last.next_obs, obs, 0, 0, False, False, False, 0, last.next_begins)
                    gap.is_gap = True
                    rows.append(gap)
                rows.append(
                    Row(
                        obs,
                        _pick(trajectory.obs, t + 1, env),
                        trajectory.action[t, env],
                        float(trajectory.reward[t, env]),
                        bool(trajectory.terminated[t, env]),
                        bool(trajectory.truncated[t, env]),
                        bool(trajectory.valid[t, env]),
                        int(trajectory.version[env]),
                        bool(trajectory.begins[t, env]),
                        bool(trajectory.begins[t + 1, env]),
                        trajectory.state[env] if t == 0 else None,
                    )
                )

    def window(
        self, column: int, row: int, n_step: int, gamma: float, clip: float
    ) -> tuple[float, float, Any] | None:
        """Return reward, discount and next observation; None while the window is open, or if the
        row is not valid."""
        rows = self.rows[column]
        if not rows[row].valid:
            return None
        total, factor = 0.0, 1.0
        for at in range(row, row + n_step):
            if at == len(rows):
                return None
            if not rows[at].valid:
                return total, factor, rows[at].obs
            reward = rows[at].reward
            total += factor * (max(-clip, min(clip, reward)) if clip else reward)
            factor *= gamma
            if rows[at].terminated:
                return total, 0.0, None
            if rows[at].truncated:
                break
        return total, factor, rows[at].next_obs

    def drawable(self, length: int, n_step: int) -> set[tuple[int, int]]:
        """Return column and number of all drawable rows among the last `length` per column."""
        return {
            (column, row)
            for column, rows in enumerate(self.rows)
            for row in range(max(0, len(rows) - length), len(rows))
            if self.window(column, row, n_step, 0.9, 0) is not None
        }

    def sequence(self, column: int, row: int, form: Sequences, n_step: int) -> list[Row] | None:
        """Return the rows that a sequence from `row` on reads; None if there is none."""
        rows = self.rows[column]
        read = rows[row : row + form.burn_in + form.length + n_step - 1]
        if rows[row].state is None or len(read) < form.burn_in + form.length + n_step - 1:
            return None
        learned = read[form.burn_in : form.burn_in + form.length]
        if any(each.is_gap for each in read) or not any(each.valid for each in learned):
            return None
        return read

    def sequences(self, length: int, form: Sequences, n_step: int) -> set[tuple[int, int]]:
        """Return where all sequences begin among the last `length` rows per column."""
        return {
            (column, row)
            for column, rows in enumerate(self.rows)
            for row in range(max(0, len(rows) - length), len(rows))
            if self.sequence(column, row, form, n_step) is not None
        }


def _pick(tree: Any, t: int, env: int) -> Any:
    if isinstance(tree, dict):
        return {key: _pick(part, t, env) for key, part in tree.items()}
    return tree[t, env]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_same(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other))
