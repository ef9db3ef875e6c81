"""The learning rate: annealed, or steered by how far updates move."""

import math
from typing import Any

import pytest

from remotely_rl import algorithms
from remotely_rl.learning.learner import LearningRate, annealed


def test_rate_and_coefficients_go_to_their_ends_as_the_schedule_does() -> None:
    rate = LearningRate(7e-4)
    rates = []
    for progress in (0.0, 0.5, 1.0):
        rate.anneal(progress)
        rates.append(rate.value)
    assert rates == pytest.approx([7e-4, 4e-4, 1e-4])
    coefficients = [annealed(0.004, 0.001, progress) for progress in (0.0, 0.5, 1.0)]
    assert coefficients == pytest.approx([0.004, 0.0025, 0.001])


@pytest.mark.parametrize("progress", [-0.1, 1.1, 4096, math.nan])
def test_what_is_no_progress_is_refused(progress: float) -> None:
    with pytest.raises(ValueError, match="progress is from 0 to 1, not"):
        LearningRate(7e-4).anneal(progress)


@pytest.mark.parametrize(
    ("start", "given", "end"), [(7e-4, None, 1e-4), (1e-6, None, 1e-6), (7e-4, 3e-3, 3e-3)]
)
def test_a_schedule_never_goes_up_unless_that_is_asked_for(
    start: float, given: float | None, end: float
) -> None:
    rate = LearningRate(start, given)
    rate.anneal(1.0)
    assert rate.value == pytest.approx(end)


@pytest.mark.parametrize(
    ("moved", "value"),
    [(0.001, 4.5e-4), (0.005, 3e-4), (0.01, 3e-4), (0.02, 3e-4), (0.03, 2e-4), (math.inf, 2e-4)],
)
def test_the_rate_is_steered_to_how_far_an_update_is_to_move(moved: float, value: float) -> None:
    rate = LearningRate(3e-4, 1e-4, target_kl=0.01)
    rate.anneal(1.0)  # is for a rate that is not steered
    rate.steer(moved)
    assert rate.value == pytest.approx(value)


def test_the_steered_rate_has_bounds() -> None:
    rate = LearningRate(3e-4, 1e-4, target_kl=0.01)
    for _ in range(20):
        rate.steer(0.0)
    assert rate.value == 3e-4 * 4
    for _ in range(30):
        rate.steer(1.0)
    assert rate.value == pytest.approx(1e-4 / 10)


@pytest.mark.parametrize("name", ["ppo", "impala", "appo", "ga3c"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "0.001, steered by target_kl=0.01, from 1e-05 to 0.004"),
        ({"learning_rate": 1e-4}, "0.0001"),
        ({"learning_rate": 1e-3}, "0.001, annealed to 0.0001"),
        ({"learning_rate": 2e-4, "target_kl": 0.02},
         "0.0002, steered by target_kl=0.02, from 1e-05 to 0.0008"),
        ({"target_kl": 0.0, "learning_rate_end": 5e-4}, "0.001, annealed to 0.0005"),
    ],
    ids=str,
)  # fmt: skip
def test_a_rate_that_is_given_is_not_steered_unless_that_is_given_too(
    name: str, given: dict[str, Any], told: str
) -> None:
    rate = LearningRate.of(algorithms.named(name).Config(**given))
    assert str(rate) == told
    rate.steer(0.0)
    assert (rate.value > rate.start) == ("steered" in told)


@pytest.mark.parametrize("name", ["dqn", "c51", "rainbow", "a2c", "a3c", "n_step_q"])
def test_a_low_rate_that_is_given_does_not_rise(name: str) -> None:
    # 16 environments, for which rates are given.
    rate = LearningRate.of(algorithms.named(name).Config(learning_rate=1e-5, actors=1))
    assert rate.end == rate.start == 1e-5
