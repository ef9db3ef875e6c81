"""Choices: the rows that may be drawn, and their probabilities.

    Uniform       equal probabilities
    Prioritised   by priority: P(i) = p_i^alpha / sum of p^alpha (Schaul et al. 2016,
                  https://arxiv.org/abs/1511.05952, equation 1)

`allow` and `forbid` say which places may be drawn.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl.experience.replay.rows import Rows

FAN_OUT = 32
TOP = 1_024
# 32 numbers times this matrix are their 33 running sums, from 0; for short rows the product is
# faster than `cumsum`.  The numbers are not negative, so in any order of additions the running sums
# do not decrease.
RUNNING = np.triu(np.ones((FAN_OUT, FAN_OUT + 1)), 1)


class SumTree:
    """`size` numbers of at least 0, initially 0, and their sums.  `find` never finds a 0."""

    def __init__(self, size: int):
        self._levels = [np.zeros(size) for size in _sizes(size)]

    @staticmethod
    def nbytes_of(size: int) -> int:
        """Return the size in bytes of a tree of `size` numbers."""
        return sum(_sizes(size)) * np.dtype(np.float64).itemsize

    @property
    def leaves(self) -> NDArray[np.float64]:
        """The numbers, [size], padded with zeros.  After writing to them, call `rebuild`."""
        return self._levels[0]

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._levels[-1].sum())

    @property
    def nbytes(self) -> int:
        """The size of the tree in bytes."""
        return sum(level.nbytes for level in self._levels)

    def set(self, at: NDArray[np.int64], numbers: NDArray[np.float64] | float) -> None:
        """Set the numbers at these places [N]; the last one counts for a repeated place."""
        if not at.size:
            return
        self.leaves[at] = numbers
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            at = at // FAN_OUT
            above[at] = below.reshape(-1, FAN_OUT)[at].sum(1)

    def rebuild(self) -> None:
        """Recompute all sums, after writing to `leaves`."""
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            above[: below.size // FAN_OUT] = below.reshape(-1, FAN_OUT).sum(1)

    def find(self, mass: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the place at which the running sum of all numbers first exceeds each mass [N].

        A mass is at least 0 and below `total`, which must not be 0.
        """
        sums = np.append(0.0, self._levels[-1].cumsum())
        mass = np.minimum(mass, np.nextafter(sums[-1], 0))
        at = sums.searchsorted(mass, "right") - 1
        mass = mass - sums[at]
        each = np.arange(len(mass))
        for level in self._levels[-2::-1]:
            sums = level.reshape(-1, FAN_OUT).take(at, 0) @ RUNNING
            # A node and the running sum of its children may round differently.
            mass = np.minimum(mass, np.nextafter(sums[:, -1], 0))
            child = (sums[:, 1:] <= mass[:, None]).argmin(1)
            mass = mass - sums[each, child]
            at = at * FAN_OUT + child
        return at


def _sizes(size: int) -> list[int]:
    """Return the size of each level, leaves first; all but the last are padded to whole groups."""
    sizes = [-(-size // FAN_OUT) * FAN_OUT]
    while sizes[-1] > TOP:
        nodes = sizes[-1] // FAN_OUT
        sizes.append(nodes if nodes <= TOP else -(-nodes // FAN_OUT) * FAN_OUT)
    return sizes


# The lowest priority: rows without any error may be drawn again.
MIN_PRIORITY = 1e-6
# Attempts of rejection sampling, before rows are drawn from a list of all that may be.
TRIES = 16


class Chosen(NamedTuple):
    """Drawn rows, [N] each."""

    columns: NDArray[np.int64]
    numbers: NDArray[np.int64]
    weight: NDArray[np.float32]  # importance, at most 1


class Uniform:
    """Draws all rows with equal probability."""

    def __init__(self, rows: Rows):
        self._rows = rows
        self._may = np.zeros(rows.places, np.bool_)
        self._count = 0

    @staticmethod
    def nbytes_of(places: int) -> int:
        """Return the size in bytes for a number of places."""
        return places

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self._may.nbytes

    def __len__(self) -> int:
        """The number of rows that may be drawn."""
        return self._count

    def may(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of these places may be drawn."""
        return self._may[places]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save: they do not follow from the rows."""
        return {}

    @property
    def state(self) -> dict[str, float]:
        """The other state to save."""
        return {}

    def restore(self, state: dict[str, float]) -> None:
        """Continue from a `state`; the arrays must have been read."""

    def allow(self, places: NDArray[np.int64]) -> None:
        """Allow these places to be drawn, which must not be allowed already."""
        self._may[places] = True
        self._count += len(places)

    def forbid(self, places: NDArray[np.int64]) -> None:
        """Stop these places from being drawn, if they are allowed."""
        self._count -= int(self._may[places].sum())
        self._may[places] = False

    def draw(self, count: int, beta: float, random: np.random.Generator) -> Chosen:
        """Draw rows with replacement, by rejection sampling.

        Candidates are drawn as if all columns were as long as the longest, and again where there is
        no row that may be drawn.
        """
        rows = self._rows
        kept = rows.count - rows.oldest
        longest = int(kept.max())
        columns, numbers = np.empty(count, np.int64), np.empty(count, np.int64)
        pending = np.arange(count)
        for _ in range(TRIES):
            # Always below the product, despite rounding; `integers` takes five times as long.
            nth = (random.random(len(pending)) * (longest * rows.width)).astype(np.int64)
            column, at = np.divmod(nth, longest)
            columns[pending], numbers[pending] = column, number = column, rows.oldest[column] + at
            pending = pending[~(self._may[rows.at(column, number)] & (at < kept[column]))]
            if not len(pending):
                break
        else:
            places = random.choice(np.flatnonzero(self._may), len(pending))
            columns[pending], numbers[pending] = rows.of(places)
        return Chosen(columns, numbers, np.ones(count, np.float32))


class Prioritised:
    """Draws by priority.  New rows have the greatest priority so far.

    `tree` holds p^alpha where a row may be drawn, and 0 elsewhere.  The methods have the contracts
    of those of `Uniform`.
    """

    def __init__(self, rows: Rows, alpha: float):
        self._rows = rows
        self._alpha = alpha
        self.tree = SumTree(rows.places)
        self.greatest = 1.0
        self._count = 0

    @staticmethod
    def nbytes_of(places: int) -> int:
        return SumTree.nbytes_of(places)

    @property
    def nbytes(self) -> int:
        return self.tree.nbytes

    def __len__(self) -> int:
        return self._count

    def may(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.tree.leaves[places] > 0

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"priorities": self.tree.leaves}

    @property
    def state(self) -> dict[str, float]:
        return {"greatest": self.greatest}

    def restore(self, state: dict[str, float]) -> None:
        self.greatest = state["greatest"]
        self.tree.rebuild()
        self._count = int(np.count_nonzero(self.tree.leaves))

    def allow(self, places: NDArray[np.int64]) -> None:
        self.tree.set(places, self.greatest**self._alpha)
        self._count += len(places)

    def forbid(self, places: NDArray[np.int64]) -> None:
        self._count -= int(self.may(places).sum())
        self.tree.set(places, 0.0)

    def draw(self, count: int, beta: float, random: np.random.Generator) -> Chosen:
        """Draw one row from each of `count` ranges of equal mass.

        The weight is (N P(i))^-beta, divided by the largest of the draw (section 3.4).
        """
        mass = (np.arange(count) + random.random(count)) * (self.tree.total / count)
        places = self.tree.find(mass)
        leaves = self.tree.leaves[places]
        weight = (leaves.min() / leaves) ** beta
        return Chosen(*self._rows.of(places), weight.astype(np.float32))

    def update(self, places: NDArray[np.int64], priorities: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of places that may be drawn, [N] finite numbers of at least 0."""
        priority = np.maximum(priorities.astype(np.float64), MIN_PRIORITY)
        self.greatest = max(self.greatest, float(priority.max(initial=0.0)))
        self.tree.set(places, priority**self._alpha)
