"""A sum tree: numbers, drawn with a probability proportional to each (Schaul et al. 2016,
https://arxiv.org/abs/1511.05952, appendix B.2.1).

Each node is the sum of 32 below it, up to a level of at most 1,024, which is searched as a whole:
so three levels hold a million numbers.  A wide tree suits numpy: a level costs the same few calls
for one draw as for 256.  A node is summed anew whenever a number below it changes, always in the
same way, so sums never drift: the tree is a function of its leaves alone.
"""

import numpy as np
from numpy.typing import NDArray

FAN_OUT = 32
TOP = 1_024
# Times 32 numbers, the 33 running sums of them, from 0 on; a product is quicker than `cumsum` of
# short rows.  As these numbers are not negative, sums do not decrease in whatever order BLAS adds.
RUNNING = np.triu(np.ones((FAN_OUT, FAN_OUT + 1)), 1)


class SumTree:
    """`size` numbers of at least 0, all 0 at first, and their sums.

    A number of 0 is never drawn.
    """

    def __init__(self, size: int):
        self._levels = [np.zeros(size) for size in _sizes(size)]

    @staticmethod
    def nbytes_of(size: int) -> int:
        """Return how many bytes a tree of `size` numbers takes."""
        return sum(_sizes(size)) * np.dtype(np.float64).itemsize

    @property
    def leaves(self) -> NDArray[np.float64]:
        """The numbers, [size], and zeros after them.  To change them, call `set` or `rebuild`."""
        return self._levels[0]

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._levels[-1].sum())

    @property
    def nbytes(self) -> int:
        """How many bytes the tree takes."""
        return sum(level.nbytes for level in self._levels)

    def set(self, at: NDArray[np.int64], numbers: NDArray[np.float64] | float) -> None:
        """Set the numbers at these places [N]; of a place that is there twice, the last counts."""
        if not at.size:
            return
        self.leaves[at] = numbers
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            at = at // FAN_OUT
            above[at] = below.reshape(-1, FAN_OUT)[at].sum(1)

    def rebuild(self) -> None:
        """Sum all anew, after `leaves` was written to."""
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
    """Return the size of each level, leaves first; all but the last are whole groups."""
    sizes = [-(-size // FAN_OUT) * FAN_OUT]
    while sizes[-1] > TOP:
        nodes = sizes[-1] // FAN_OUT
        sizes.append(nodes if nodes <= TOP else -(-nodes // FAN_OUT) * FAN_OUT)
    return sizes
