"""Windows of n steps: what is learnt from a row and those after it.

A window starts at a valid row and covers at most n.  It ends after a row that terminated or was
truncated, and before one that is not valid.  What follows is bootstrapped from the observation of
the row after it.  In environments that reset in the step after the end, that row is the invalid
one, which holds the last observation of the episode: a truncation is exact.

A window is closed once nothing that is yet to come can change it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# The flags of a row.
TERMINATED, TRUNCATED, VALID, BEGINS = (np.uint8(1 << bit) for bit in range(4))
ENDED = TERMINATED | TRUNCATED


class Returns(NamedTuple):
    """What windows come to, [N] each."""

    length: NDArray[np.int64]  # how many rows each covers
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
    """Sum closed windows, given n rows from the start of each, [n, N] in the order of time.

    Each reward is clipped to [-clip, clip] before it is summed, if `clip` is not 0.  Rows after the
    end of a window may hold anything.
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
