"""Tests of Ratio: neither sampling nor learning runs ahead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remotely_rl.experience.replay import Ratio


@pytest.mark.parametrize(("width", "batch_size", "updates"), [(16, 32, 16), (64, 2_048, 1)])
def test_updates_owed_follow_from_the_ratio(width: int, batch_size: int, updates: int) -> None:
    ratio = Ratio(8, batch_size)
    for phase in range(1, 10):
        ratio.appended(4 * width)
        assert ratio.updates_owed == updates, phase
        ratio.updated(updates)
    assert ratio.updates_owed == 0


def test_the_first_rows_owe_no_updates() -> None:
    ratio = Ratio(1, 32, learn_from=1_000)
    ratio.appended(1_000)
    assert ratio.updates_owed == 0
    ratio.appended(32)
    assert ratio.updates_owed == 1


def test_sampling_waits_for_updates_after_learn_from() -> None:
    ratio = Ratio(0.5, 32, learn_from=1_000)
    assert ratio.rows_allowed == 1_064
    ratio.appended(1_064)
    assert ratio.rows_allowed == 0
    ratio.updated()
    assert ratio.rows_allowed == 64


@given(
    st.sampled_from([0.25, 1.0, 3.3, 8.0]),
    st.integers(1, 300),
    st.integers(1, 50),
    st.lists(st.booleans(), min_size=50, max_size=200),
)
def test_neither_side_runs_ahead_by_more_than_1_percent_and_one_turn(
    times: float, batch_size: int, at_once: int, turns: list[bool]
) -> None:
    ratio = Ratio(times, batch_size, learn_from=100)
    for is_learner in turns:
        assert ratio.updates_owed or ratio.rows_allowed, "both wait"
        if is_learner:
            ratio.updated(ratio.updates_owed)
        elif ratio.rows_allowed:
            ratio.appended(at_once)
        due = max(0, ratio.rows - 100) * times
        done = ratio.trained
        assert done <= due + 1e-6
        assert due <= max(1.01 * done, done + batch_size) + (at_once + 1) * times


def test_another_ratio_applies_to_new_rows_only() -> None:
    before = Ratio(1, 32, learn_from=1_000)
    before.appended(3_010)
    before.updated(before.updates_owed)
    assert before.trained == 62 * 32

    after = Ratio(8, 64, learn_from=1_000)
    after.restore(before.state())
    assert after.updates_owed == 0

    after.appended(60)
    assert after.updates_owed == (26 + 60 * 8) // 64
