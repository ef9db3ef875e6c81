"""Sequences: consecutive rows of a column, for recurrent models.

A sequence begins where a trajectory began, since there the actor sent the state of its model.  Of
its rows, the first `burn_in` only bring the state up to date, because newer parameters would have
another state than the actor's; the others are learned from.  With trajectories of `stride` rows,
each row is learned from in `length / stride` sequences, which overlap.  Kapturowski et al. 2019
(R2D2), https://openreview.net/forum?id=r1lyTjAqYX, section 3.

Unlike R2D2's, a sequence may cover the end of an episode: a model resets its state where an episode
begins.  Its rows need not all be experience: each of those that are has its own window
(`windows.py`), which may go on past the last row, so a sequence reads `n_step` observations more.

A sequence is closed once its last row's window is.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl.experience.replay.windows import GAP, STATE, VALID


class Sequences(NamedTuple):
    """The form of a replay's sequences.

    length    rows to learn from
    burn_in   rows before them
    stride    rows of a trajectory; from one to the next a state is stored
    width     numbers of a state
    """

    length: int
    burn_in: int
    stride: int
    width: int

    @property
    def rows(self) -> int:
        """The number of rows of a sequence."""
        return self.burn_in + self.length

    def span(self, n_step: int) -> int:
        """Return the number of rows that must be known to draw a sequence."""
        return self.rows + n_step - 1

    def closed(self, flags: NDArray[np.uint8], n_step: int) -> NDArray[np.bool_]:
        """Return which of the last R rows of each column start a closed sequence, [R, B].

        None of its rows is before a gap, and at least one to learn from is experience.
        """
        starts = np.asarray((flags & STATE) != 0)
        span = self.span(n_step)
        starts[max(0, len(flags) - span + 1) :] = False
        if span > len(flags):
            return starts
        gaps, valid = _running((flags & GAP) != 0), _running((flags & VALID) != 0)
        count = len(flags) - span + 1
        first, end = self.burn_in, self.rows
        starts[:count] &= gaps[span:] == gaps[:count]
        starts[:count] &= valid[end : end + count] > valid[first : first + count]
        return starts


# R2D2's eta: the weight of the largest error of a sequence in its priority, against the mean.
LARGEST = 0.9


class SequenceInput(NamedTuple):
    """The inputs of a recurrent model besides observations, and where rows to learn from are.

    They are arrays in a draw, and tensors on the learner's device.  There are N sequences of L
    observations, and M rows of experience to learn from.
    """

    state: Any  # [N, S], before the first observation
    begins: Any  # [L, N], as in a Trajectory
    step: Any  # [M], the index of a row's observation
    next_step: Any  # [M], that of the observation it bootstraps from
    column: Any  # [M], the sequence of a row
    burn_in: int

    def priorities(self, errors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the priorities of the sequences of a draw [N], from the errors of rows [M]."""
        count = self.begins.shape[1]
        largest = np.zeros(count)
        np.maximum.at(largest, self.column, errors)
        mean = np.bincount(self.column, errors, count) / np.bincount(self.column, minlength=count)
        return LARGEST * largest + (1 - LARGEST) * mean


def _running(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many of the first 0, 1, ... rows have the flag, [R + 1, B]."""
    sums = np.zeros((len(flags) + 1, flags.shape[1]), np.int64)
    flags.cumsum(0, out=sums[1:])
    return sums
