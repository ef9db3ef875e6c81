"""Replay: the newest rows of experience, and draws from them.

Each environment has a column, a ring of rows, so that rows which follow each other in time lie
beside each other.  An observation is kept once: the next one is that of the following row.  So one
place more than there are rows holds the observation after the last action, and the next trajectory
of that column starts with it.  If it starts with another, as after an actor was replaced, the place
stays as a row that is not valid, and windows end there.

The handle of a row never returns to another: it is the number of rows that its column was given
before, times the number of columns, plus the column.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.errors import ReplayError
from remotely_rl.experience.replay import layout, room, windows
from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.replay.stores import Frames, Store, Whole
from remotely_rl.experience.replay.sum_tree import SumTree
from remotely_rl.experience.replay.windows import BEGINS, DRAWABLE, TERMINATED, TRUNCATED, VALID
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.trees import Tree

# No priority is less: a row that is learnt to the last bit may be drawn again.
LEAST_PRIORITY = 1e-6
# After so many tries rows that may be drawn are looked for among all.
TRIES = 16


class Draw(NamedTuple):
    """Rows that were drawn: arrays [N], trees of arrays [N, ...]."""

    rows: NDArray[np.int64]  # handles for `update`
    obs: Tree
    action: NDArray[Any]
    reward: NDArray[np.float32]  # the discounted sum of the window, each reward clipped
    discount: NDArray[np.float32]  # of the value of `next_obs`: 0 if the window terminated
    next_obs: Tree  # after the window; anything where `discount` is 0
    weight: NDArray[np.float32]  # importance of each row, the largest is 1
    version: NDArray[np.uint32]  # of the parameters that chose the action


class Replay:
    """Experience of `width` environments, drawn uniformly or by priority.

    `rejected` counts priorities that were not numbers.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        example: Trajectory | Layout,
        n_step: int = 3,
        gamma: float = 0.99,
        reward_clip: float = 0.0,
        alpha: float = 0.0,
        seed: int = 1,
        say: Callable[[str], None] = print,
    ):
        """Make room for `rows` rows in all, as many of each environment.

        `example` says what rows look like.  `reward_clip` 0 clips nothing.  `alpha` is how much
        priorities count, 0 not at all.  `say` is told once if images turn out to be no stacks.

        Raises ReplayError if memory has no room for it.
        """
        if rows < width or width < 1:
            raise ReplayError(
                f"a replay of {rows:,} rows for {width} environments has no row for each: ask for"
                f" at least {width:,} rows"
            )
        self.layout = example if isinstance(example, Layout) else Layout.of(example)
        self.width, self.length = width, rows // width
        self.gamma, self.reward_clip, self.alpha = gamma, reward_clip, alpha
        self._n_step = n_step
        self.rejected = 0
        self._say = say
        self._random = np.random.default_rng(seed)
        self._ring = self.length + 1
        places = width * self._ring
        leaves = trees.leaves(self.layout.obs)
        kinds: list[type[Store]] = [Frames if leaf.frame else Whole for leaf in leaves]
        sizes = [
            kind.nbytes_of(leaf, width, self._ring)
            for kind, leaf in zip(kinds, leaves, strict=True)
        ]
        # Reward and version take four bytes each, flags one, the tree a little more than eight.
        room.check(sum(sizes) + places * (self.layout.action.nbytes + 9 + 9 * bool(alpha)), rows)
        self._stores = [
            kind(leaf, width, self._ring) for kind, leaf in zip(kinds, leaves, strict=True)
        ]
        self._action = np.empty((places, *self.layout.action.shape), self.layout.action.dtype)
        self._reward = np.empty(places, np.float32)
        self._flags = np.zeros(places, np.uint8)
        self._version = np.zeros(places, np.uint32)
        self._tree = SumTree(places) if alpha else None
        self._greatest = 1.0  # priority so far
        self._drawable = 0
        self._is_fed = np.zeros(width, np.bool_)
        # Of each column: how many rows it was given, and the number of the oldest that is kept.
        self._count = np.zeros(width, np.int64)
        self._oldest = np.zeros(width, np.int64)

    def __len__(self) -> int:
        """How many rows can be drawn: valid ones whose windows are closed."""
        return self._drawable

    @property
    def nbytes(self) -> int:
        """How many bytes of memory all arrays take."""
        arrays = [self._action, self._reward, self._flags, self._version]
        for store in self._stores:
            arrays.append(store.data)
            if isinstance(store, Frames):
                arrays.append(store.newest)
        tree = self._tree.nbytes if self._tree else 0
        return sum(array.nbytes for array in arrays) + tree

    @property
    def bytes_per_row(self) -> float:
        """How many bytes of memory a row takes, all included."""
        return self.nbytes / (self.width * self.length)

    @property
    def n_step(self) -> int:
        """How many rows a window covers at most; it may be changed between draws."""
        return self._n_step

    @n_step.setter
    def n_step(self, n_step: int) -> None:
        longest = max(n_step, self._n_step)
        self._n_step = n_step
        self._close(np.arange(self.width), longest)

    def append(self, trajectory: Trajectory, column: int = 0) -> None:
        """Append T rows to each of B columns, from `column` on.

        Raises ReplayError for rows of other shapes or dtypes, and for columns that are not there.
        """
        self.layout.check(trajectory)
        if not 0 <= column <= self.width - trajectory.width:
            raise ReplayError(
                f"{trajectory.width} environments from column {column} on do not fit a replay of"
                f" {self.width} columns"
            )
        flags = np.zeros((trajectory.steps + 1, trajectory.width), np.uint8)
        flags[trajectory.begins] |= BEGINS
        flags[:-1][trajectory.terminated] |= TERMINATED
        flags[:-1][trajectory.truncated] |= TRUNCATED
        flags[:-1][trajectory.valid] |= VALID
        obs = trees.leaves(trajectory.obs)
        for start in range(0, trajectory.steps, self._at_once):
            rows = slice(start, min(start + self._at_once, trajectory.steps))
            seen = slice(start, rows.stop + 1)
            part = flags[seen].copy()
            part[-1] &= BEGINS
            columns = np.arange(column, column + trajectory.width)
            places = self._append([leaf[seen] for leaf in obs], columns, part)
            self._action[places] = trajectory.action[rows]
            self._reward[places] = trajectory.reward[rows]
            self._version[places] = trajectory.version
            self._close(columns, len(places) + self._n_step)

    def draw(self, count: int, beta: float = 0.4) -> Draw:
        """Draw `count` rows, with replacement.

        By priority, P(i) = p_i^alpha / sum of p^alpha, from as many ranges of the same mass, and
        weight (N P(i))^-beta over the largest (Schaul et al. 2016,
        https://arxiv.org/abs/1511.05952, equation 1 and section 3.4).  Raises ReplayError if there
        is nothing to draw.
        """
        if not self._drawable:
            raise ReplayError(
                f"the replay has no row to draw yet: a window of {self._n_step} steps needs as many"
                " rows of an environment, or the end of an episode"
            )
        columns, rows, weight = self._by_priority(count, beta) if self._tree else self._any(count)
        after = np.arange(self._n_step)[:, None]
        places = self._places(columns, rows + after)
        window = windows.returns(
            self._flags[places], self._reward[places], self.gamma, self.reward_clip
        )
        ends = self._places(columns, rows + window.length)
        return Draw(
            rows=rows * self.width + columns,
            obs=self._observations(places[0]),
            action=self._action[places[0]],
            reward=window.reward,
            discount=window.discount,
            next_obs=self._observations(ends),
            weight=weight,
            version=self._version[places[0]],
        )

    def update(self, rows: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of rows that were drawn, [N] each; a uniform replay ignores them.

        Rows that were overwritten meanwhile are left out.  A priority that is negative or not
        finite is left as it was, and counted in `rejected`.
        """
        if self._tree is None:
            return
        columns, numbers = rows % self.width, rows // self.width
        places = self._places(columns, numbers)
        is_number = np.isfinite(priorities) & (priorities >= 0)
        self.rejected += int((~is_number).sum())
        is_there = (numbers >= self._oldest[columns]) & ((self._flags[places] & DRAWABLE) != 0)
        chosen = is_number & is_there
        if chosen.any():
            priority = np.maximum(priorities[chosen].astype(np.float64), LEAST_PRIORITY)
            self._greatest = max(self._greatest, float(priority.max()))
            self._tree.set(places[chosen], priority**self.alpha)

    @property
    def _at_once(self) -> int:
        """How many steps can be appended at a time, if each were to begin an episode."""
        stores = [store for store in self._stores if isinstance(store, Frames)]
        return min([self.length, *(store.ring // store.leaf.stack - 2 for store in stores)])

    def _places(
        self, columns: NDArray[np.int64] | int, rows: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        return columns * self._ring + rows % self._ring

    def _observations(self, places: NDArray[np.int64]) -> Tree:
        found = iter([store.gather(places) for store in self._stores])
        return trees.map_tree(lambda _: next(found), self.layout.obs)

    def _append(
        self, obs: list[NDArray[Any]], columns: NDArray[np.int64], flags: NDArray[np.uint8]
    ) -> NDArray[np.int64]:
        """Write observations and flags [T + 1, B, ...]; return the places [T, B] of the rows."""
        first, steps = int(columns[0]), len(flags) - 1
        begins = (flags & BEGINS) != 0
        starts = ~self._joins(columns, [leaf[0] for leaf in obs], begins[0])
        rows = self._count[columns] + (self._is_fed[columns] & starts)
        adds = [self._adds(i, leaf, begins, starts) for i, leaf in enumerate(obs)]
        oldest = np.maximum(self._oldest[columns], rows + steps - self.length)
        for store, added in zip(self._stores, adds, strict=True):
            total = added.sum(0)
            while (lost := self._lost(store, columns, oldest, total)).any():
                oldest += lost
        self._evict(columns, oldest)
        places = self._places(columns, rows + np.arange(steps + 1)[:, None])
        for store, leaf, added in zip(self._stores, obs, adds, strict=True):
            store.write(first, places, leaf, added)
        self._flags[places] = flags
        self._is_fed[columns] = True
        self._count[columns] = rows + steps
        return places[:-1]

    def _lost(
        self,
        store: Store,
        columns: NDArray[np.int64],
        oldest: NDArray[np.int64],
        adds: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Return which of the oldest rows [B] are overwritten when so much [B] is added."""
        kept = store.keeps(int(columns[0]), self._places(columns, oldest), adds)
        # The last observation of a column always stays: no more is appended at once.
        lost: NDArray[np.bool_] = ~kept & (oldest < self._count[columns])
        return lost

    def _joins(
        self, columns: NDArray[np.int64], obs: list[NDArray[Any]], begins: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which first observations [B, ...] are those that the column was left with."""
        places = self._places(columns, self._count[columns])
        joins: NDArray[np.bool_] = self._is_fed[columns] & (
            ((self._flags[places] & BEGINS) != 0) == begins
        )
        for store, leaf in zip(self._stores, obs, strict=True):
            if joins.any():
                joins[joins] = layout.same(store.gather(places[joins]), leaf[joins])
        return joins

    def _adds(
        self,
        index: int,
        obs: NDArray[Any],
        begins: NDArray[np.bool_],
        starts: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        store = self._stores[index]
        adds = store.adds(obs, begins, starts)
        if isinstance(store, Frames) and not store.are_stacks:
            self._stores[index] = self._whole(store)
            adds = self._stores[index].adds(obs, begins, starts)
        return adds

    def _whole(self, frames: Frames) -> Whole:
        """Return the same observations, kept whole from now on."""
        leaf = frames.leaf
        room.check(Whole.nbytes_of(leaf, self.width, self._ring), self.width * self.length)
        self._say(
            f"images {list(leaf.shape)} are not stacks of which each continues the one before: the"
            f" replay keeps them whole, {leaf.nbytes:,} bytes a row"
        )
        whole = Whole(leaf, self.width, self._ring)
        for column in np.flatnonzero(self._is_fed).tolist():
            rows = np.arange(self._oldest[column], self._count[column] + 1)
            for start in range(0, len(rows), 1024):
                places = self._places(column, rows[start : start + 1024])
                whole.data[places] = frames.gather(places)
        return whole

    def _evict(self, columns: NDArray[np.int64], oldest: NDArray[np.int64]) -> None:
        """Give up the rows of each column before the `oldest` that stays."""
        before = self._oldest[columns]
        self._oldest[columns] = oldest
        gone = oldest - before
        nth = np.arange(gone.sum()) - np.repeat(gone.cumsum() - gone, gone)
        self._forbid(self._places(np.repeat(columns, gone), np.repeat(before, gone) + nth))

    def _close(self, columns: NDArray[np.int64], last: int) -> None:
        """Let rows be drawn whose windows are closed now, among the `last` of each column."""
        rows = self._count[columns] + np.arange(-last, 0)[:, None]
        places = self._places(columns, rows)
        flags = np.where(rows >= self._oldest[columns], self._flags[places], 0).astype(np.uint8)
        is_closed = windows.closed(flags, self._n_step)
        was_closed = (flags & DRAWABLE) != 0
        self._forbid(places[was_closed & ~is_closed])
        allowed = places[is_closed & ~was_closed]
        self._flags[allowed] |= DRAWABLE
        self._drawable += len(allowed)
        if self._tree:
            self._tree.set(allowed, self._greatest**self.alpha)

    def _forbid(self, places: NDArray[np.int64]) -> None:
        self._drawable -= int(((self._flags[places] & DRAWABLE) != 0).sum())
        self._flags[places] &= ~DRAWABLE
        if self._tree:
            self._tree.set(places, 0.0)

    def _by_priority(
        self, count: int, beta: float
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Draw columns, rows and weights from the tree."""
        assert self._tree is not None
        mass = (np.arange(count) + self._random.random(count)) * (self._tree.total / count)
        places = self._tree.find(mass)
        leaves = self._tree.leaves[places]
        weight = (leaves.min() / leaves) ** beta
        columns, at = np.divmod(places, self._ring)
        newest = self._count[columns] - 1
        return columns, newest - (newest - at) % self._ring, weight.astype(np.float32)

    def _any(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Draw columns and rows uniformly, and weights of 1."""
        kept = self._count - self._oldest
        ends = kept.cumsum()
        columns, rows = np.empty(count, np.int64), np.empty(count, np.int64)
        left = np.arange(count)
        for _ in range(TRIES):
            nth = self._random.integers(ends[-1], size=len(left))
            columns[left] = np.searchsorted(ends, nth, "right")
            rows[left] = nth + (self._oldest + kept - ends)[columns[left]]
            flags = self._flags[self._places(columns[left], rows[left])]
            left = left[(flags & DRAWABLE) == 0]
            if not len(left):
                break
        else:
            places = self._random.choice(np.flatnonzero(self._flags & DRAWABLE), len(left))
            columns[left], at = np.divmod(places, self._ring)
            newest = self._count[columns[left]] - 1
            rows[left] = newest - (newest - at) % self._ring
        return columns, rows, np.ones(count, np.float32)
