"""Counts that are tried out, by rates that are made up."""

from collections.abc import Mapping

import hypothesis
import hypothesis.strategies as st
import pytest

from remotely_rl.algorithms.ga3c import RateWindow, Tuner

NAMES = ("agents", "predictors", "trainers")
LIMITS = dict(zip(NAMES, (16, 4, 4), strict=True))
START = dict(zip(NAMES, (2, 1, 1), strict=True))
BEST = dict(zip(NAMES, (9, 3, 2), strict=True))


def throughput(counts: Mapping[str, int]) -> float:
    """Best with 9 agents, 3 predictors and 2 trainers; less with each step away from there."""
    return 100.0 - sum((counts[name] - BEST[name]) ** 2 for name in NAMES)


def test_the_counts_climb_to_where_the_rate_is_best_and_stay_about_there() -> None:
    tuner = Tuner(START, LIMITS)
    counts, accepted = dict(START), []
    for _ in range(400):
        counts = tuner.judge(throughput(counts))
        accepted.append(dict(counts))
    at_the_end = accepted[-40:]
    assert BEST in at_the_end
    assert max(sum(abs(c[n] - BEST[n]) for n in NAMES) for c in at_the_end) <= 3  # one move away


def test_a_move_that_lowers_the_rate_is_taken_back() -> None:
    tuner = Tuner(START, LIMITS)
    moved = tuner.judge(10.0)
    assert moved != START
    assert tuner.judge(9.0) == START == tuner.counts
    again = tuner.judge(10.0)
    assert again != START
    assert tuner.judge(10.0) != START  # as good as before is no reason to go back


def test_a_rate_is_compared_with_that_of_now_and_not_with_a_lucky_one_of_long_ago() -> None:
    tuner = Tuner(START, LIMITS)
    tuner.judge(10.0)
    assert tuner.judge(9.0) == START
    moved = tuner.judge(5.0)  # the counts of the start give less now than they did
    tuner.judge(6.0)
    assert tuner.judge(0.0) == moved  # 6 was enough


@hypothesis.given(
    seed=st.integers(0, 1000),
    limits=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    rates=st.lists(st.floats(0, 100), min_size=1, max_size=40),
)
def test_counts_are_never_below_one_nor_above_their_limits(
    seed: int, limits: tuple[int, ...], rates: list[float]
) -> None:
    allowed = dict(zip(NAMES, limits, strict=True))
    before = dict.fromkeys(NAMES, 1)
    tuner = Tuner(before, allowed, seed)
    for rate in rates:
        counts = tuner.judge(rate)
        assert all(1 <= counts[name] <= allowed[name] for name in NAMES)
        assert all(abs(counts[name] - before[name]) <= 1 for name in NAMES)
        before = counts


@hypothesis.given(seed=st.integers(0, 1000), bumps=st.lists(st.integers(0, 9), min_size=64))
def test_what_is_accepted_never_has_a_lower_rate_than_what_was_accepted_before(
    seed: int, bumps: list[int]
) -> None:
    def rate(counts: Mapping[str, int]) -> float:
        """Any landscape, as long as it does not change."""
        agents, predictors, trainers = (counts[name] for name in NAMES)
        return float(bumps[(16 * agents + 4 * predictors + trainers) % len(bumps)])

    tuner = Tuner(START, LIMITS, seed)
    counts = dict(START)
    kept, kept_rate = dict(START), rate(START)
    for _ in range(60):
        tried, tried_rate = dict(counts), rate(counts)
        counts = tuner.judge(tried_rate)
        if tried_rate < kept_rate:
            assert counts == kept
        else:
            kept, kept_rate = tried, tried_rate
            assert counts != tried  # and on to the next


def test_the_same_seed_tries_the_same() -> None:
    def tried(seed: int) -> list[dict[str, int]]:
        tuner = Tuner(START, LIMITS, seed)
        return [tuner.judge(rate) for rate in range(20)]

    assert tried(1) == tried(1) != tried(2)


def test_what_it_returns_and_was_given_is_not_what_it_holds() -> None:
    given = dict(START)
    tuner = Tuner(given, LIMITS)
    tuner.judge(1.0)["agents"] = 99
    assert given == START
    assert tuner.counts["agents"] < 99


@pytest.mark.timeout(10)
def test_where_there_is_nothing_to_try_the_counts_stay() -> None:
    ones = dict.fromkeys(NAMES, 1)
    tuner = Tuner(ones, ones)
    assert [tuner.judge(rate) for rate in (1.0, 2.0, 0.5)] == [ones] * 3


def test_a_window_tells_the_rate_of_what_came_in_it() -> None:
    window = RateWindow(begins=10.0, length=5.0)
    assert window.add(100, now=9.0) is None  # before it begins
    assert window.add(10, now=12.0) is None
    assert window.add(10, now=15.0) == 4.0
    assert window.add(3, now=19.0) is None
    assert window.add(3, now=21.0) == 1.0
