"""Tests of windows of n steps: their sums, their ends, and when they are closed."""

import numpy as np
import pytest

from remotely_rl.experience.replay.windows import (
    TERMINATED,
    TRUNCATED,
    VALID,
    Returns,
    closed,
    returns,
)

PLAIN, OVER, CUT = int(VALID), int(VALID | TERMINATED), int(VALID | TRUNCATED)
RESET = 0


def returns_of(flags: list[int], reward: list[float], clip: float = 0.0) -> Returns:
    column = np.array(flags, np.uint8)[:, None]
    return returns(column, np.array(reward, np.float32)[:, None], 0.9, clip)


@pytest.mark.parametrize(
    ("flags", "length", "reward", "discount"),
    [
        ([PLAIN, PLAIN, PLAIN], 3, 5.23, 0.729),
        ([PLAIN, OVER, PLAIN], 2, 2.8, 0),
        ([PLAIN, CUT, RESET], 2, 2.8, 0.81),
        ([PLAIN, PLAIN, OVER], 3, 5.23, 0),
        ([PLAIN, PLAIN, CUT], 3, 5.23, 0.729),
        ([OVER, RESET, PLAIN], 1, 1, 0),
        ([CUT, RESET, OVER], 1, 1, 0.9),
        ([CUT | OVER, PLAIN, PLAIN], 1, 1, 0),
        ([PLAIN, RESET, PLAIN], 1, 1, 0.9),
    ],
)
def test_a_window_ends_with_its_episode(
    flags: list[int], length: int, reward: float, discount: float
) -> None:
    found = returns_of(flags, [1, 2, 3])
    assert found.length.tolist() == [length]
    assert found.reward == pytest.approx(reward)
    assert found.discount == pytest.approx(discount)


def test_rewards_are_clipped_before_they_are_summed() -> None:
    assert returns_of([PLAIN, PLAIN, PLAIN], [5, -7, 0.5], clip=1).reward == pytest.approx(0.505)


def test_rows_after_the_end_of_a_window_are_ignored() -> None:
    found = returns_of([PLAIN, OVER, PLAIN], [1, 2, float("nan")])
    assert found.reward == pytest.approx(2.8)


@pytest.mark.parametrize(
    ("flags", "n_step", "expected"),
    [
        ([PLAIN] * 5, 1, [1, 1, 1, 1, 1]),
        ([PLAIN] * 5, 3, [1, 1, 1, 0, 0]),
        ([PLAIN] * 5, 6, [0, 0, 0, 0, 0]),
        ([PLAIN, PLAIN, PLAIN, OVER, PLAIN], 3, [1, 1, 1, 1, 0]),
        ([PLAIN, PLAIN, PLAIN, CUT, RESET], 3, [1, 1, 1, 1, 0]),
        ([PLAIN, PLAIN, PLAIN, PLAIN, RESET], 9, [1, 1, 1, 1, 0]),
        ([RESET, PLAIN, RESET, PLAIN, PLAIN], 1, [0, 1, 0, 1, 1]),
    ],
)
def test_a_window_is_closed_once_later_rows_cannot_change_it(
    flags: list[int], n_step: int, expected: list[int]
) -> None:
    column = np.array(flags, np.uint8)[:, None]
    assert closed(column, n_step)[:, 0].tolist() == [bool(one) for one in expected]
