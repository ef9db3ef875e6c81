"""GA3C's tuner and rate windows, with synthetic rates."""

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
    """A rate with its maximum at BEST."""
    return 100.0 - sum((counts[name] - BEST[name]) ** 2 for name in NAMES)


def test_counts_climb_to_the_best_rate_and_stay_near_it() -> None:
    tuner = Tuner(START, LIMITS)
    counts, accepted = dict(START), []
    for _ in range(400):
        counts = tuner.judge(throughput(counts))
        accepted.append(dict(counts))
    at_the_end = accepted[-40:]
    assert BEST in at_the_end
    assert max(sum(abs(c[n] - BEST[n]) for n in NAMES) for c in at_the_end) <= 3  # one move away


def test_a_move_that_lowers_the_rate_is_undone() -> None:
    tuner = Tuner(START, LIMITS)
    moved = tuner.judge(10.0)
    assert moved != START
    assert tuner.judge(9.0) == START == tuner.counts
    again = tuner.judge(10.0)
    assert again != START
    assert tuner.judge(10.0) != START  # an equal rate is accepted


def test_a_rate_is_compared_with_a_recent_one_not_with_the_best_ever() -> None:
    tuner = Tuner(START, LIMITS)
    tuner.judge(10.0)
    assert tuner.judge(9.0) == START
    moved = tuner.judge(5.0)  # the start counts are slower now
    tuner.judge(6.0)
    assert tuner.judge(0.0) == moved  # 6 is accepted, although it is below 10


@hypothesis.given(
    seed=st.integers(0, 1000),
    limits=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    rates=st.lists(st.floats(0, 100), min_size=1, max_size=40),
)
def test_counts_stay_between_one_and_their_limits(
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
def test_accepted_counts_never_have_a_lower_rate(seed: int, bumps: list[int]) -> None:
    def rate(counts: Mapping[str, int]) -> float:
        """An arbitrary, but fixed, rate for each combination of counts."""
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
            assert counts != tried


def test_a_seed_repeats_its_trials() -> None:
    def tried(seed: int) -> list[dict[str, int]]:
        tuner = Tuner(START, LIMITS, seed)
        return [tuner.judge(rate) for rate in range(20)]

    assert tried(1) == tried(1) != tried(2)


def test_the_tuner_shares_no_dict_with_its_caller() -> None:
    given = dict(START)
    tuner = Tuner(given, LIMITS)
    tuner.judge(1.0)["agents"] = 99
    assert given == START
    assert tuner.counts["agents"] < 99


@pytest.mark.timeout(10)
def test_limits_of_one_leave_nothing_to_try() -> None:
    ones = dict.fromkeys(NAMES, 1)
    tuner = Tuner(ones, ones)
    assert [tuner.judge(rate) for rate in (1.0, 2.0, 0.5)] == [ones] * 3


def test_a_window_returns_the_rate_of_its_updates() -> None:
    window = RateWindow(begins=10.0, length=5.0)
    assert window.add(100, now=9.0) is None  # before it begins
    assert window.add(10, now=12.0) is None
    assert window.add(10, now=15.0) == 4.0
    assert window.add(3, now=19.0) is None
    assert window.add(3, now=21.0) == 1.0
