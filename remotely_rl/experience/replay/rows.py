"""Rows: the storage of a replay, one ring buffer per environment.

Each environment has a column, a ring of rows in time order.  An observation is stored once: the
next observation is that of the following row.  So a ring has one place more than rows, for the
observation after the last action, with which the column's next trajectory starts.  If that starts
with another observation, as after an actor is replaced, the place remains as an invalid row, and
windows end there; sequences do not go on past it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.experience.replay import layout
from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.replay.sequences import Sequences
from remotely_rl.experience.replay.stores import (
    Frames,
    Ring,
    States,
    Store,
    WholeRows,
    check_memory,
)
from remotely_rl.experience.replay.windows import BEGINS, GAP, STATE, TERMINATED, TRUNCATED, VALID
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.trees import Tree

CHUNK = 1_024  # rows whose images are converted at a time
# Bytes of a row besides its observation and action: reward, version, flags.
REST = 4 + 4 + 1


class Part(NamedTuple):
    """Steps of B columns, few enough to be written at once."""

    obs: list[NDArray[Any]]  # the leaves, [T + 1, B, ...]
    flags: NDArray[np.uint8]  # [T + 1, B]
    action: NDArray[Any]  # [T, B, ...]
    reward: NDArray[np.float32]  # [T, B]
    version: NDArray[np.int64]  # [B]
    state: NDArray[np.float32] | None  # [B, S], before the first row, if sequences may begin there


class Rows:
    """The last `length` rows of each of `width` columns.

    The rows of a column are numbered from 0, in the order of `write`.

    count    the number of rows written to each column, [width]
    oldest   the number of the oldest stored row, [width]
    places   the number of places in all rings
    """

    def __init__(
        self,
        length: int,
        width: int,
        layout: Layout,
        say: Callable[[str], None],
        sequences: Sequences | None = None,
    ):
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
        self.states: States | None = None
        if sequences is not None:
            self.states = States(sequences.width, sequences.stride, width, self.ring)

    @staticmethod
    def nbytes_of(
        length: int, width: int, layout: Layout, sequences: Sequences | None = None
    ) -> int:
        """Return the size in bytes of such rows."""
        ring = length + 1
        stores = sum(_kind(leaf).nbytes_of(leaf, width, ring) for leaf in trees.leaves(layout.obs))
        if sequences is not None:
            stores += States.nbytes_of(sequences.width, sequences.stride, width, ring)
        return stores + width * ring * (layout.action.nbytes + REST)

    @property
    def nbytes(self) -> int:
        """The size in bytes of all arrays."""
        return sum(ring.data.nbytes for rings in self.rings().values() for ring in rings)

    def rings(self) -> dict[str, list[Ring]]:
        """Return all arrays: those with one entry per row, and those of frames and states."""
        end = self.count + (self.count > 0)  # with the observation after the last action
        arrays = [self.action, self.reward, self.flags, self.version]
        found: dict[str, list[Ring]] = {}
        for index, store in enumerate(self.stores):
            if isinstance(store, WholeRows):
                arrays.append(store.data)
                continue
            arrays.append(store.newest)
            first = np.maximum(store.written - store.ring, 0)
            found[f"frames {index}"] = [Ring(store.data, first, store.written, store.written)]
        if (states := self.states) is not None:
            arrays.append(states.newest)
            first = np.maximum(states.written - states.ring, 0)
            found["states"] = [Ring(states.data, first, states.written, states.written)]
        rows = [Ring(array, self.oldest, self.count, end) for array in arrays]
        return {"rows": rows, **found}

    def at(self, columns: NDArray[np.int64] | int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of rows, by column and number."""
        return columns * self.ring + numbers % self.ring

    def of(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the columns and numbers of the rows at places."""
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
        if self.states is not None:
            flags[0] |= STATE
        obs = trees.leaves(trajectory.obs)
        limits = [store.steps_at_once for store in self.stores if isinstance(store, Frames)]
        most = min([self.length, *limits])
        for start in range(0, trajectory.steps, most):
            stop = min(start + most, trajectory.steps)
            seen = flags[start : stop + 1].copy()
            seen[-1] &= BEGINS  # the rest of that row is still unknown
            yield Part(
                [leaf[start : stop + 1] for leaf in obs],
                seen,
                trajectory.action[start:stop],
                trajectory.reward[start:stop],
                trajectory.version,
                trajectory.state if self.states is not None and start == 0 else None,
            )

    def write(self, part: Part, column: int) -> NDArray[np.int64]:
        """Append a part to columns from `column` on; return the places of the dropped rows."""
        steps, width = part.action.shape[:2]
        columns = np.arange(column, column + width)
        begins = (part.flags & BEGINS) != 0
        starts = ~self._joins(columns, [leaf[0] for leaf in part.obs], begins[0])
        breaks = (self.count[columns] > 0) & starts
        self.flags[self.at(columns, self.count[columns])[breaks]] |= GAP
        numbers = self.count[columns] + breaks
        adds = [self._adds(index, leaf, begins, starts) for index, leaf in enumerate(part.obs)]
        dropped = self._drop(columns, numbers + steps - self.length, adds, part.state is not None)
        places = self.at(columns, numbers + np.arange(steps + 1)[:, None])
        for store, leaf, added in zip(self.stores, part.obs, adds, strict=True):
            store.write(column, places, leaf, added)
        if self.states is not None:
            self.states.write(column, places, part.state)
        self.flags[places] = part.flags
        rows = places[:-1]
        self.action[rows], self.reward[rows] = part.action, part.reward
        self.version[rows] = part.version
        self.count[columns] = numbers + steps
        return dropped

    @property
    def state(self) -> dict[str, Any]:
        """The state that is not in the arrays, as plain values."""
        frames = {
            index: [store.leaf.frame, store.written.tolist(), store.moved, store.broken]
            for index, store in enumerate(self.stores)
            if isinstance(store, Frames)
        }
        states = {} if self.states is None else {"states": self.states.written.tolist()}
        return {
            "count": self.count.tolist(),
            "oldest": self.oldest.tolist(),
            "frames": frames,
            **states,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state` that was saved as JSON; then the arrays must be read."""
        self.count[:], self.oldest[:] = state["count"], state["oldest"]
        if self.states is not None:
            self.states.written[:] = state["states"]
        frames = state["frames"]
        for index, store in enumerate(self.stores):
            # The example of this replay may have led to another choice than that of the save.
            frame, *counts = frames.get(str(index), [0])
            if store.leaf.frame != frame:
                self.stores[index] = self._room_for(replace(store.leaf, frame=frame))
            if isinstance(restored := self.stores[index], Frames):
                restored.written[:], restored.moved, restored.broken = counts

    def clear(self) -> None:
        """Drop all rows."""
        self.count[:] = self.oldest[:] = 0
        for store in self.stores:
            if isinstance(store, Frames):
                store.written[:] = 0
        if self.states is not None:
            self.states.written[:] = 0

    def _keep_whole(self, index: int) -> None:
        """Replace a store of frames by one of whole observations."""
        frames = self.stores[index]
        whole = self._room_for(replace(frames.leaf, frame=0))
        for column in np.flatnonzero(self.count).tolist():
            numbers = np.arange(self.oldest[column], self.count[column] + 1)
            for start in range(0, len(numbers), CHUNK):
                places = self.at(column, numbers[start : start + CHUNK])
                whole.data[places] = frames.gather(places)
        self.stores[index] = whole

    def _room_for(self, leaf: layout.Leaf) -> Store:
        """Return a new store.  Raises ReplayError if there is not enough memory."""
        kind = _kind(leaf)
        check_memory(kind.nbytes_of(leaf, self.width, self.ring), self.width * self.length)
        return kind(leaf, self.width, self.ring)

    def _joins(
        self, columns: NDArray[np.int64], obs: list[NDArray[Any]], begins: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which first observations [B, ...] equal the last ones of their columns."""
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
                f" before: the replay stores them whole, {store.leaf.nbytes:,} bytes a row"
            )
            self._keep_whole(index)
            adds = self.stores[index].adds(obs, begins, starts)
        return adds

    def _drop(
        self,
        columns: NDArray[np.int64],
        oldest: NDArray[np.int64],
        adds: list[NDArray[np.int64]],
        adds_state: bool,
    ) -> NDArray[np.int64]:
        """Drop rows before `oldest`, and those that `adds` overwrite; return their places."""
        before = self.oldest[columns]
        oldest = np.maximum(oldest, before)
        stores: list[tuple[Store | States, NDArray[np.int64]]] = [
            (store, added.sum(0)) for store, added in zip(self.stores, adds, strict=True)
        ]
        if self.states is not None:
            stores.append((self.states, np.full(len(columns), int(adds_state))))
        for store, added in stores:
            while True:
                kept = store.keeps(int(columns[0]), self.at(columns, oldest), added)
                # The observation after the last action stays: parts are small enough for that.
                lost = ~kept & (oldest < self.count[columns])
                if not lost.any():
                    break
                oldest = oldest + lost
        self.oldest[columns] = oldest
        dropped = oldest - before
        nth = np.arange(dropped.sum()) - np.repeat(dropped.cumsum() - dropped, dropped)
        return self.at(np.repeat(columns, dropped), np.repeat(before, dropped) + nth)


def _kind(leaf: layout.Leaf) -> type[Store]:
    return Frames if leaf.frame else WholeRows
