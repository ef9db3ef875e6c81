"""Interquartile means and their bootstrap intervals: by hand, and beside a slow oracle."""

import itertools

import numpy as np
import pytest

from remotely_rl.runs import aggregate
from remotely_rl.runs.aggregate import RunsOfMethod


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0], 1.5),
        ([0.0, 3.0, 6.0], 3.0),  # a quarter of three is no whole score
        ([0.0, 100.0, 10.0, 0.0], 5.0),
        ([8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0], 4.5),
        ([-1e9, 1.0, 2.0, 3.0, 1e9], 2.0),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_both_ends(
    scores: list[float], mean: float
) -> None:
    assert aggregate.interquartile_mean(np.array(scores)) == pytest.approx(mean)


def slow_mean(scores: list[float]) -> float:
    cut = len(scores) // 4
    middle = sorted(scores)[cut : len(scores) - cut]
    return sum(middle) / len(middle)


def slow_interval(strata: list[list[float]]) -> list[float]:
    """The interval of all draws that there are: each is equally likely."""
    each = [list(itertools.product(of, repeat=len(of))) for of in strata]
    means = [slow_mean(list(itertools.chain(*drawn))) for drawn in itertools.product(*each)]
    return [sorted(means)[int(end / 100 * len(means))] for end in aggregate.PERCENTILES]


@pytest.mark.parametrize(
    "strata",
    [
        [[0.0, 1.0, 1.5, 7.0, 8.0]],
        [[0.0, 3.0, 6.0], [10.0, 10.5, 30.0]],
    ],
    ids=str,
)
def test_the_interval_is_that_of_all_draws_within_each_environment(
    strata: list[list[float]],
) -> None:
    found = aggregate.interval([np.array(of) for of in strata], repetitions=5_000)
    assert found is not None
    assert found.tolist() == pytest.approx(slow_interval(strata), abs=0.15)


def test_curves_have_an_interval_at_each_point_and_the_same_one_each_time() -> None:
    curves = np.random.default_rng(5).normal(size=(5, 3)).cumsum(1)
    found = aggregate.interval([curves])
    assert found is not None
    alone = aggregate.interval([curves[:, 1]])
    assert alone is not None
    assert found[:, 1].tolist() == alone.tolist()
    assert (found[0] < aggregate.interquartile_mean(curves)).all()
    assert (found[1] > aggregate.interquartile_mean(curves)).all()


def test_an_interval_that_would_reach_from_the_lowest_to_the_highest_run_is_none() -> None:
    enough = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    ends = aggregate.interval([enough])
    assert ends is not None
    assert 1 < ends[0] < ends[1] < 5
    assert aggregate.interval([enough[:4]]) is None
    assert aggregate.interval([enough[:3], enough[:3]]) is not None
    assert aggregate.interval([enough, enough[:2]]) is None
    (alone,) = aggregate.summarize([RunsOfMethod("ppo", "Pong", [3.0, 5.0])])
    assert str(alone) == "ppo, Pong: IQM 4 of 2 runs (fewer than 5 runs: no interval)"


def test_returns_of_several_environments_are_scaled_by_all_runs_in_each() -> None:
    found = aggregate.summarize(
        [
            RunsOfMethod("ppo", "Pong", [-21.0, 0.0, 21.0]),
            RunsOfMethod("a2c", "Pong", [-21.0, -21.0, -21.0]),
            RunsOfMethod("ppo", "CartPole-v1", [500.0, 500.0, 500.0]),
            RunsOfMethod("a2c", "CartPole-v1", [0.0, 250.0, 500.0]),
            RunsOfMethod("sac", "Pendulum-v1", [-140.0, -150.0, -160.0]),
        ]
    )
    means = {(each.method, each.where): each.mean for each in found}
    assert means == pytest.approx(
        {
            ("ppo", "Pong"): 0.0,
            ("ppo", "CartPole-v1"): 500.0,
            ("ppo", "2 environments, scaled"): (0.5 + 1 + 1 + 1) / 4,  # of 0, 1/2 and four 1
            ("a2c", "Pong"): -21.0,
            ("a2c", "CartPole-v1"): 250.0,
            ("a2c", "2 environments, scaled"): (0 + 0 + 0 + 0.5) / 4,
            ("sac", "Pendulum-v1"): -150.0,
        }
    )
