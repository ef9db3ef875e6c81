"""Stores: the storage of one array of a replay's observations.

    Whole    the whole array of each row
    Frames   stacks of frames, with each frame stored once
    States   not of observations: the states of a recurrent model where trajectories began

Each environment has a column, and each column a ring of rows; a place is the index of a row in all
rings laid end to end.  Frames are in a second ring per column.  A row adds its newest frame to that
ring.  A row whose stack is not the previous one shifted by a frame adds its whole stack, as at the
start of an episode, whatever a reset pads with.  So the stack of any row is a run of consecutive
frames, and no code must look for the ends of episodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from remotely.machine import this_machine
from remotely_rl.errors import ReplayError
from remotely_rl.experience.replay.layout import Leaf, continues

# The ring of frames has one spare frame for this many rows.  If stacks of four begin more often
# than every 240 rows, the oldest rows are dropped a little earlier.
ROWS_A_SPARE_FRAME = 80


class WholeRows:
    """Arrays [places, ...], one for each row."""

    def __init__(self, leaf: Leaf, width: int, length: int):
        """`length` is that of the ring of rows of each of `width` columns."""
        self.leaf = leaf
        self.data = np.empty((width * length, *leaf.shape), leaf.dtype)

    @staticmethod
    def nbytes_of(leaf: Leaf, width: int, length: int) -> int:
        """Return the size in bytes of such a store."""
        return width * length * leaf.nbytes

    def adds(
        self, obs: NDArray[Any], begins: NDArray[np.bool_], starts: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return how many arrays each observation [T + 1, B, ...] adds.

        The first one is already stored as the previous trajectory's last, except where it `starts`
        [B] a new sequence.
        """
        adds = np.ones(obs.shape[:2], np.int64)
        adds[0] = starts
        return adds

    def keeps(
        self, column: int, places: NDArray[np.int64], adds: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which rows at places [B] survive after `adds` [B] are added."""
        return np.ones(len(places), np.bool_)

    def write(
        self, column: int, places: NDArray[np.int64], obs: NDArray[Any], adds: NDArray[np.int64]
    ) -> None:
        """Write observations to places [T + 1, B] of the columns from `column` on."""
        starts = adds[0] > 0
        self.data[places[0, starts]] = obs[0, starts]
        self.data[places[1:]] = obs[1:]

    def gather(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return the observations at places [N], [N, ...]."""
        return self.data.take(places, 0)


class Frames:
    """Stacks of C frames.  The methods have the contracts of those of `WholeRows`.

    data      all rings of frames laid end to end, [frames, ...]
    newest    the index of the newest frame of each row, [places]
    written   the number of frames written to each column
    moved     the number of rows that continued the previous stack
    broken    the number that did not, although no episode began there
    """

    def __init__(self, leaf: Leaf, width: int, length: int):
        self.leaf = leaf
        self.ring = self.ring_of(leaf, length)
        self.data = np.empty((width * self.ring, *leaf.frame_shape), leaf.dtype)
        self.newest = np.zeros(width * length, np.uint32)
        self.written = np.zeros(width, np.int64)
        self.moved = self.broken = 0

    @staticmethod
    def ring_of(leaf: Leaf, length: int) -> int:
        """Return the number of frames in a column's ring."""
        return length + length // ROWS_A_SPARE_FRAME + 3 * leaf.stack

    @classmethod
    def nbytes_of(cls, leaf: Leaf, width: int, length: int) -> int:
        frames = cls.ring_of(leaf, length) * (leaf.nbytes // leaf.stack)
        return width * (frames + length * np.dtype(np.uint32).itemsize)

    @property
    def are_stacks(self) -> bool:
        """Whether most rows continued the previous stack; other images are better stored whole."""
        return self.broken <= self.moved

    @property
    def steps_at_once(self) -> int:
        """The number of steps that can be appended at once even if each begins an episode."""
        return self.ring // self.leaf.stack - 2

    def adds(
        self, obs: NDArray[Any], begins: NDArray[np.bool_], starts: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        moved = continues(obs, self.leaf.frame)
        moved_where_expected = moved[~begins[1:]]
        self.moved += int(moved_where_expected.sum())
        self.broken += int((~moved_where_expected).sum())
        stack = self.leaf.stack
        adds = np.empty(obs.shape[:2], np.int64)
        adds[0] = np.where(starts, stack, 0)
        adds[1:] = np.where(moved & ~begins[1:], 1, stack)
        return adds

    def keeps(
        self, column: int, places: NDArray[np.int64], adds: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        columns = np.arange(column, column + len(places))
        newest = self.newest[places] - columns * self.ring
        since = (self.written[columns] - 1 - newest) % self.ring
        return np.asarray(since + adds + self.leaf.stack <= self.ring)

    def write(
        self, column: int, places: NDArray[np.int64], obs: NDArray[Any], adds: NDArray[np.int64]
    ) -> None:
        columns = np.arange(column, column + places.shape[1])
        newest = self.written[columns] + adds.cumsum(0) - 1
        self.written[columns] = newest[-1] + 1
        stack, frame = self.leaf.stack, self.leaf.frame
        for back in range(stack):  # almost all rows add only one frame
            rows = np.nonzero(adds > back)
            at = columns[rows[1]] * self.ring + (newest[rows] - back) % self.ring
            oldest = (stack - 1 - back) * frame
            self.data[at] = obs[:, :, oldest : oldest + frame][rows]
        self.newest[places] = columns * self.ring + newest % self.ring

    def gather(self, places: NDArray[np.int64]) -> NDArray[Any]:
        newest = self.newest[places].astype(np.int64)
        base = newest - newest % self.ring
        back = np.arange(1 - self.leaf.stack, 1)
        frames = base[:, None] + (newest - base + back[:, None]).T % self.ring
        return self.data.take(frames, 0).reshape(len(places), *self.leaf.shape)


class States:
    """States of a recurrent model, one for each trajectory.

    As `Frames`, they are in a second ring per column, whose oldest rows are dropped if trajectories
    are shorter than `stride`.

    data      all rings of states laid end to end, [states, S]
    newest    the index of the newest state of each row, [places]
    written   the number of states written to each column
    """

    def __init__(self, numbers: int, stride: int, width: int, length: int):
        self.ring = self.ring_of(stride, length)
        self.data = np.zeros((width * self.ring, numbers), np.float32)
        self.newest = np.zeros(width * length, np.uint32)
        self.written = np.zeros(width, np.int64)

    @staticmethod
    def ring_of(stride: int, length: int) -> int:
        """Return the number of states in a column's ring."""
        return length // stride + 2

    @classmethod
    def nbytes_of(cls, numbers: int, stride: int, width: int, length: int) -> int:
        states = cls.ring_of(stride, length) * numbers * np.dtype(np.float32).itemsize
        return width * (states + length * np.dtype(np.uint32).itemsize)

    def keeps(
        self, column: int, places: NDArray[np.int64], adds: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which rows at places [B] survive after `adds` [B] states are added."""
        columns = np.arange(column, column + len(places))
        since = (self.written[columns] - 1 - self.newest[places]) % self.ring
        return np.asarray(since + adds + 1 <= self.ring)

    def write(
        self, column: int, places: NDArray[np.int64], state: NDArray[np.float32] | None
    ) -> None:
        """Write the states [B, S] before the first of places [T + 1, B], if it has any."""
        columns = np.arange(column, column + places.shape[1])
        self.written[columns] += state is not None
        newest = columns * self.ring + (self.written[columns] - 1) % self.ring
        if state is not None:
            self.data[newest] = state
        self.newest[places] = newest

    def gather(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the states at places [N] where trajectories began, [N, S]."""
        return self.data.take(self.newest[places], 0)


Store = WholeRows | Frames


@dataclass(frozen=True)
class Ring:
    """The rings of all columns laid end to end, and the ranges [width] of their entries.

    Entry i of a column is at i modulo the length of a ring.  Entries before `settled` are
    immutable.
    """

    data: NDArray[Any]  # [width * length, ...]
    first: NDArray[np.int64]
    settled: NDArray[np.int64]
    end: NDArray[np.int64]

    def pieces(self, first: Sequence[int], end: Sequence[int]) -> Iterator[memoryview]:
        """Yield the bytes of entries from `first` to `end` of each column, to read or to write."""
        length = len(self.data) // len(end)
        for column, (at, stop) in enumerate(zip(first, end, strict=True)):
            while at < stop:
                start = column * length + at % length
                count = min(stop - at, length - at % length)
                yield self.data[start : start + count].reshape(-1).view(np.uint8).data
                at += count


GIB = 2**30


def check_memory(nbytes: int, rows: int) -> None:
    """Raise ReplayError, naming both numbers, if `nbytes` for `rows` exceed the free memory.

    Call it before touching any of the memory.
    """
    free = min(psutil.virtual_memory().available, this_machine.memory())
    if nbytes > free:
        raise ReplayError(
            f"a replay of {rows:,} rows takes {nbytes / GIB:.1f} GiB, and {free / GIB:.1f} GiB of"
            f" memory are free: ask for at most {rows * free // nbytes:,} rows"
        )
