"""Rows: what a replay holds, and where.

Each environment has a column, a ring of rows, so that rows which follow each other in time lie
beside each other.  An observation is kept once: the next one is that of the following row.  So a
ring has one place more than rows, which holds the observation after the last action.  The next
trajectory of the column starts with it.  If it starts with another, as after an actor was replaced,
the place stays as a row that is not valid, and windows end there.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.experience.replay import layout
from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.replay.stores import Frames, Ring, Store, Whole, check_memory
from remotely_rl.experience.replay.windows import BEGINS, TERMINATED, TRUNCATED, VALID
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.trees import Tree

AT_ONCE = 1_024  # rows whose images are converted at a time
# Bytes of a row besides its observation and action: reward, version, flags.
REST = 4 + 4 + 1


class Part(NamedTuple):
    """As many steps of B columns as can be written at once."""

    obs: list[NDArray[Any]]  # the leaves, [T + 1, B, ...]
    flags: NDArray[np.uint8]  # [T + 1, B]
    action: NDArray[Any]  # [T, B, ...]
    reward: NDArray[np.float32]  # [T, B]
    version: NDArray[np.int64]  # [B]


class Rows:
    """The last `length` rows of each of `width` columns.

    Rows of a column are numbered from 0 on, in the order in which it was given them.

    count    how many rows each column was given, [width]
    oldest   the number of the oldest one that is kept, [width]
    places   how many places all rings have
    """

    def __init__(self, length: int, width: int, layout: Layout, say: Callable[[str], None]):
        self.length, self.width, self.layout, self._say = length, width, layout, say
        self.ring = length + 1
        self.places = width * self.ring
        self.count = np.zeros(width, np.int64)
        self.oldest = np.zeros(width, np.int64)
        self.action = np.empty((self.places, *layout.action.shape), layout.action.dtype)
        self.reward = np.zeros(self.places, np.float32)
        self.flags = np.zeros(self.places, np.uint8)
        self.version = np.zeros(self.places, np.uint32)
        self.stores: list[Store] = [
            _kind(leaf)(leaf, width, self.ring) for leaf in trees.leaves(layout.obs)
        ]

    @staticmethod
    def nbytes_of(length: int, width: int, layout: Layout) -> int:
        """Return how many bytes so many rows take."""
        ring = length + 1
        stores = sum(_kind(leaf).nbytes_of(leaf, width, ring) for leaf in trees.leaves(layout.obs))
        return stores + width * ring * (layout.action.nbytes + REST)

    @property
    def nbytes(self) -> int:
        """How many bytes all arrays take."""
        return sum(ring.data.nbytes for rings in self.rings().values() for ring in rings)

    def rings(self) -> dict[str, list[Ring]]:
        """Return all arrays: those that hold an entry for each row, and those of frames."""
        end = self.count + (self.count > 0)  # with the observation after the last action
        arrays = [self.action, self.reward, self.flags, self.version]
        found: dict[str, list[Ring]] = {}
        for index, store in enumerate(self.stores):
            if isinstance(store, Whole):
                arrays.append(store.data)
                continue
            arrays.append(store.newest)
            first = np.maximum(store.written - store.ring, 0)
            found[f"frames {index}"] = [Ring(store.data, first, store.written, store.written)]
        rows = [Ring(array, self.oldest, self.count, end) for array in arrays]
        return {"rows": rows, **found}

    def at(self, columns: NDArray[np.int64] | int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of rows, by column and number."""
        return columns * self.ring + numbers % self.ring

    def of(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return column and number of the rows at places."""
        columns = places // self.ring
        newest = self.count[columns] - 1
        return columns, newest - (newest - places) % self.ring

    def observations(self, places: NDArray[np.int64]) -> Tree:
        """Return the observations at places [N]: a tree of arrays [N, ...]."""
        found = iter([store.gather(places) for store in self.stores])
        return trees.map_tree(lambda _: next(found), self.layout.obs)

    def cut(self, trajectory: Trajectory) -> Iterator[Part]:
        """Cut a trajectory of any length into parts that fit."""
        flags = np.zeros(trajectory.begins.shape, np.uint8)
        flags[trajectory.begins] |= BEGINS
        for name, flag in (("terminated", TERMINATED), ("truncated", TRUNCATED), ("valid", VALID)):
            flags[:-1][getattr(trajectory, name)] |= flag
        obs = trees.leaves(trajectory.obs)
        limits = [store.steps_at_once for store in self.stores if isinstance(store, Frames)]
        most = min([self.length, *limits])
        for start in range(0, trajectory.steps, most):
            stop = min(start + most, trajectory.steps)
            seen = flags[start : stop + 1].copy()
            seen[-1] &= BEGINS  # the rest of that row is not known yet
            yield Part(
                [leaf[start : stop + 1] for leaf in obs],
                seen,
                trajectory.action[start:stop],
                trajectory.reward[start:stop],
                trajectory.version,
            )

    def write(self, part: Part, column: int) -> NDArray[np.int64]:
        """Append a part to columns from `column` on; return the places of rows given up for it."""
        steps, width = part.action.shape[:2]
        columns = np.arange(column, column + width)
        begins = (part.flags & BEGINS) != 0
        starts = ~self._joins(columns, [leaf[0] for leaf in part.obs], begins[0])
        numbers = self.count[columns] + ((self.count[columns] > 0) & starts)
        adds = [self._adds(index, leaf, begins, starts) for index, leaf in enumerate(part.obs)]
        gone = self._give_up(columns, numbers + steps - self.length, adds)
        places = self.at(columns, numbers + np.arange(steps + 1)[:, None])
        for store, leaf, added in zip(self.stores, part.obs, adds, strict=True):
            store.write(column, places, leaf, added)
        self.flags[places] = part.flags
        rows = places[:-1]
        self.action[rows], self.reward[rows] = part.action, part.reward
        self.version[rows] = part.version
        self.count[columns] = numbers + steps
        return gone

    @property
    def state(self) -> dict[str, Any]:
        """What the arrays do not tell, as plain values."""
        frames = {
            index: [store.leaf.frame, store.written.tolist(), store.moved, store.broken]
            for index, store in enumerate(self.stores)
            if isinstance(store, Frames)
        }
        return {"count": self.count.tolist(), "oldest": self.oldest.tolist(), "frames": frames}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` that was saved as JSON; its arrays are still to be read."""
        self.count[:], self.oldest[:] = state["count"], state["oldest"]
        frames = state["frames"]
        for index, store in enumerate(self.stores):
            # An example may look like stacks or not; what was saved was decided by another one.
            frame, *counts = frames.get(str(index), [0])
            if store.leaf.frame != frame:
                self.stores[index] = self._room_for(replace(store.leaf, frame=frame))
            if isinstance(restored := self.stores[index], Frames):
                restored.written[:], restored.moved, restored.broken = counts

    def clear(self) -> None:
        """Give up all rows."""
        self.count[:] = self.oldest[:] = 0
        for store in self.stores:
            if isinstance(store, Frames):
                store.written[:] = 0

    def _keep_whole(self, index: int) -> None:
        """Keep the observations of a store of frames whole from now on."""
        frames = self.stores[index]
        whole = self._room_for(replace(frames.leaf, frame=0))
        for column in np.flatnonzero(self.count).tolist():
            numbers = np.arange(self.oldest[column], self.count[column] + 1)
            for start in range(0, len(numbers), AT_ONCE):
                places = self.at(column, numbers[start : start + AT_ONCE])
                whole.data[places] = frames.gather(places)
        self.stores[index] = whole

    def _room_for(self, leaf: layout.Leaf) -> Store:
        """Return an empty store in the place of another.  Raise ReplayError without memory."""
        kind = _kind(leaf)
        check_memory(kind.nbytes_of(leaf, self.width, self.ring), self.width * self.length)
        return kind(leaf, self.width, self.ring)

    def _joins(
        self, columns: NDArray[np.int64], obs: list[NDArray[Any]], begins: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which first observations [B, ...] are those that the column was left with."""
        places = self.at(columns, self.count[columns])
        joins = (self.count[columns] > 0) & (((self.flags[places] & BEGINS) != 0) == begins)
        for store, leaf in zip(self.stores, obs, strict=True):
            joins[joins] = layout.same(store.gather(places[joins]), leaf[joins])
        return np.asarray(joins)

    def _adds(
        self,
        index: int,
        obs: NDArray[Any],
        begins: NDArray[np.bool_],
        starts: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        store = self.stores[index]
        adds = store.adds(obs, begins, starts)
        if isinstance(store, Frames) and not store.are_stacks:
            self._say(
                f"images {list(store.leaf.shape)} are not stacks of which each continues the one"
                f" before: the replay keeps them whole, {store.leaf.nbytes:,} bytes a row"
            )
            self._keep_whole(index)
            adds = self.stores[index].adds(obs, begins, starts)
        return adds

    def _give_up(
        self,
        columns: NDArray[np.int64],
        oldest: NDArray[np.int64],
        adds: list[NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        """Give up rows before `oldest`, and as many more as `adds` overwrite; return the places."""
        before = self.oldest[columns]
        oldest = np.maximum(oldest, before)
        for store, added in zip(self.stores, adds, strict=True):
            while True:
                kept = store.keeps(int(columns[0]), self.at(columns, oldest), added.sum(0))
                # The observation after the last action stays: no part adds more than that.
                lost = ~kept & (oldest < self.count[columns])
                if not lost.any():
                    break
                oldest = oldest + lost
        self.oldest[columns] = oldest
        gone = oldest - before
        nth = np.arange(gone.sum()) - np.repeat(gone.cumsum() - gone, gone)
        return self.at(np.repeat(columns, gone), np.repeat(before, gone) + nth)


def _kind(leaf: layout.Leaf) -> type[Store]:
    return Frames if leaf.frame else Whole
