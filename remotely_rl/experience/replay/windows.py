"""Windows: n-step returns from the rows of a replay.

A window starts at a valid row and covers at most n rows.  It ends after a row that terminated or
was truncated, and before an invalid row.  It bootstraps from the observation of the row after it.
In environments that reset in the step after the end, that is the invalid row with the last
observation of the episode, so a truncation is exact.

A window is closed once later rows cannot change it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# The flags of a row.  STATE: a trajectory began here, whose state is stored; GAP: the next row does
# not follow from this one.  Both are for sequences.
TERMINATED, TRUNCATED, VALID, BEGINS, STATE, GAP = (np.uint8(1 << bit) for bit in range(6))
ENDED = TERMINATED | TRUNCATED


class Returns(NamedTuple):
    """The returns of windows, [N] each."""

    length: NDArray[np.int64]  # the number of rows covered
    reward: NDArray[np.float32]  # the discounted sum
    discount: NDArray[np.float32]  # of the value after it: 0 if it terminated


def closed(flags: NDArray[np.uint8], n_step: int) -> NDArray[np.bool_]:
    """Return which of the last R rows of each column start a closed window, [R, B]."""
    valid = (flags & VALID) != 0
    ends = (flags & ENDED) != 0
    ends[:-1] |= ~valid[1:]
    is_closed = ends.copy()
    for later in range(1, min(n_step, len(flags))):
        is_closed[:-later] |= ends[later:]
    if n_step <= len(flags):
        is_closed[: len(flags) - n_step + 1] = True
    return np.asarray(is_closed & valid)


def returns(
    flags: NDArray[np.uint8], reward: NDArray[np.floating], gamma: float, clip: float
) -> Returns:
    """Return the returns of closed windows, given the first n rows of each, [n, N].

    Each reward is first clipped to [-clip, clip], unless `clip` is 0.  Rows after the end of a
    window may have any content.
    """
    if clip:
        reward = reward.clip(-clip, clip)
    length = np.ones(flags.shape[1], np.int64)
    total = reward[0].astype(np.float64)
    last = flags[0]
    covered = np.ones(flags.shape[1], np.bool_)
    for step in range(1, len(flags)):
        covered = covered & ((last & ENDED) == 0) & ((flags[step] & VALID) != 0)
        total += np.where(covered, gamma**step * reward[step].astype(np.float64), 0.0)
        length += covered
        last = np.where(covered, flags[step], last)
    discounts = gamma ** np.arange(len(flags) + 1)
    discount = np.where((last & TERMINATED) != 0, 0.0, discounts[length])
    return Returns(length, total.astype(np.float32), discount.astype(np.float32))
