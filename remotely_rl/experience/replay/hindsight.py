"""Hindsight: rows drawn as if a goal that was achieved later had been the desired one.

Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495, with the strategy "future" of section
4.5.  Observations are those of Gymnasium-Robotics' goal environments, a dict with `achieved_goal`
and `desired_goal`.  Of k + 1 rows drawn, k get the goal that is achieved by a row drawn from the
rest of their episode, themselves included; the rewards of their windows, and whether they
terminate, are computed anew.  Nothing is stored for it: it is done to what is drawn.

The episode of a row ends where its window must (`windows.py`), or with the newest row.  In
environments that reset in the last step itself, the observation after it is lost, so this row is
left out.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.environments.goals import ACHIEVED, DESIRED, Judge
from remotely_rl.errors import TrainingError
from remotely_rl.experience.replay.rows import Rows
from remotely_rl.experience.replay.windows import BEGINS, ENDED, TERMINATED, TRUNCATED, VALID
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.supervision.judgement import OF_END, OF_REWARD
from remotely_rl.trees import Tree

CHUNK = 32  # rows at a time in which the end of an episode is looked for


class Goals(NamedTuple):
    """New goals of some of N rows, and what becomes of the windows of all, [n, N]."""

    which: NDArray[np.bool_]  # [N]
    goal: NDArray[Any]  # of these, [M, ...]
    flags: NDArray[np.uint8]
    reward: NDArray[np.float32]

    def put_in(self, obs: Tree) -> Tree:
        """Return observations [N, ...] with the new goals."""
        goal = obs[DESIRED].copy()
        goal[self.which] = self.goal
        return {**obs, DESIRED: goal}


class Hindsight:
    """Goals for the rows that are drawn; see the module's docstring."""

    def __init__(self, goals: int, judge: Judge):
        """`goals` is k, the number of rows with a new goal for each row with its own."""
        self._share, self._judge = goals / (goals + 1), judge
        self._compared = 0  # steps
        self._differing: Counter[str] = Counter()  # of these, by the function that says otherwise
        self._examples: dict[str, str] = {}  # one of them for each function

    def compare(self, trajectory: Trajectory) -> None:
        """Count steps, and those with other outcomes than the judge gives for their own goals."""
        # The outcome of the others is unknown, or was not observed.
        known = trajectory.valid & ~trajectory.begins[1:]
        if not known.any():
            return
        achieved, desired = (trajectory.obs[name][1:][known] for name in (ACHIEVED, DESIRED))
        judged = self._judge(achieved, desired)
        reward, terminated = trajectory.reward[known], trajectory.terminated[known]
        self._compared += len(reward)
        differs = _differ(reward, judged.reward, achieved, desired)
        compared: list[tuple[str, NDArray[Any], str, NDArray[Any], NDArray[np.bool_]]] = [
            ("the reward", reward, OF_REWARD, judged.reward, differs)
        ]
        if judged.terminated is not None:
            differs = terminated != judged.terminated
            compared += [("terminated", terminated, OF_END, judged.terminated, differs)]
        for what, had, name, says, differs in compared:
            if not differs.any():
                continue
            i = int(differs.argmax())
            self._differing[name] += int(differs.sum())
            self._examples[name] = (
                f"{ACHIEVED} {achieved[i]} and {DESIRED} {desired[i]} had {what} {had[i]!s}, and"
                f" {name} says {says[i]!s}"
            )

    def check(self) -> None:
        """Raise TrainingError if more than half of the steps compared had other outcomes.

        A wrapper that changes rewards or goals breaks this promise of the interface, in nearly
        every step.  Few steps differ by rounding, at a threshold of distance for example.
        """
        for name, count in self._differing.items():
            if 2 * count > self._compared:
                raise TrainingError(
                    f"hindsight: {count:,} of {self._compared:,} steps had other outcomes than"
                    f" {name} says: one with {self._examples[name]}. A wrapper that changes"
                    f" rewards, ends or goals needs a {name} of its own; attributes that a hook has"
                    " set must be set again when a run is resumed"
                )

    def goals(
        self,
        rows: Rows,
        columns: NDArray[np.int64],
        numbers: NDArray[np.int64],
        n_step: int,
        random: np.random.Generator,
    ) -> Goals:
        """Choose goals for rows, by column and number."""
        window = numbers + np.arange(n_step)[:, None]
        at = rows.at(columns, window)
        flags, reward = rows.flags[at], rows.reward[at]
        end = last_of_episode(rows, columns, numbers)
        is_lost = (rows.flags[rows.at(columns, end + 1)] & BEGINS) != 0
        known = end - is_lost
        chance, nth = random.random((2, len(numbers)))
        which = (chance < self._share) & (known >= numbers)
        later = numbers + (nth * (known - numbers + 1)).astype(np.int64)
        goal = _achieved(rows, columns[which], later[which])
        # Windows end before a row whose outcome is lost.
        flags[which & is_lost & (window == end)] &= ~VALID
        judged = which & (window <= known)
        place = np.cumsum(which) - 1  # of the goal
        step, row = judged.nonzero()
        outcome = self._judge(_achieved(rows, columns[row], window[step, row]), goal[place[row]])
        reward[judged] = outcome.reward
        if outcome.terminated is not None:
            was = flags[judged]
            ended = np.where((was & TERMINATED) != 0, TRUNCATED, np.uint8(0))
            flags[judged] = (was & ~TERMINATED) | np.where(outcome.terminated, TERMINATED, ended)
        return Goals(which, goal, flags, reward)


def last_of_episode(
    rows: Rows, columns: NDArray[np.int64], numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of the last row of each row's episode, as far as it is stored."""
    last, pending = numbers.copy(), np.arange(len(numbers))
    while len(pending):
        column, row = columns[pending], last[pending] + np.arange(CHUNK)[:, None]
        here, after = (rows.flags[rows.at(column, number)] for number in (row, row + 1))
        goes_on = (after & (VALID | BEGINS)) == VALID
        is_last = ((here & ENDED) != 0) | (row + 1 >= rows.count[column]) | ~goes_on
        found = is_last.any(0)
        last[pending] += np.where(found, is_last.argmax(0), CHUNK)
        pending = pending[~found]
    return last


def _differ(
    had: NDArray[Any], says: NDArray[Any], achieved: NDArray[Any], desired: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return which rewards differ, by half of the digits of float32 of a step's largest number.

    The replay has goals in float32: a small distance of large goals is rounded as they are.
    """
    part = np.sqrt(np.finfo(np.float32).eps)
    numbers = (had, says, achieved, desired)
    sizes = [np.abs(x.reshape(len(had), -1).astype(np.float32)).max(1) for x in numbers]
    return np.asarray(~(np.abs(had - says) <= part * np.max(sizes, 0)))


def _achieved(rows: Rows, columns: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[Any]:
    """Return the goals achieved by rows, which the observations after them have."""
    paths = [path for path, _ in trees.items(rows.layout.obs)]
    store = rows.stores[paths.index((ACHIEVED,))]
    return store.gather(rows.at(columns, numbers + 1))
