"""The learning rate: annealed, or steered by how far updates move the policy."""

import math
from typing import Any

import pytest

from remotely_rl import a2c, ppo
from remotely_rl.learning.schedule import LearningRate, steered

CONFIG = a2c.Config(anneal_steps=1000, scale_rate=False)


def test_rate_and_entropy_go_to_their_ends_and_stay_there() -> None:
    rate = LearningRate(CONFIG)
    rates, coefficients = [], []
    for steps in (0, 500, 1000, 9000):
        rate.anneal(steps)
        rates.append(rate.value)
        coefficients.append(CONFIG.entropy_coef_at(steps))
    low, high = 1e-4, CONFIG.learning_rate
    assert rates == pytest.approx([high, (low + high) / 2, low, low])
    low, high = CONFIG.entropy_coef_end, CONFIG.entropy_coef
    assert coefficients == pytest.approx([high, (low + high) / 2, low, low])


@pytest.mark.parametrize(
    ("given", "end"),
    [({}, 1e-4), ({"learning_rate": 1e-6}, 1e-6), ({"learning_rate_end": 3e-3}, 3e-3)],
)
def test_a_schedule_never_goes_up_unless_that_is_asked_for(
    given: dict[str, Any], end: float
) -> None:
    assert a2c.Config(anneal_steps=100, **given).learning_rate_at(100) == pytest.approx(end)


STEERED = ppo.Config(learning_rate=3e-4, learning_rate_end=1e-4, target_kl=0.01)


@pytest.mark.parametrize(
    ("moved", "rate"),
    [(0.001, 4.5e-4), (0.005, 3e-4), (0.01, 3e-4), (0.02, 3e-4), (0.03, 2e-4), (math.inf, 2e-4)],
)
def test_the_rate_is_steered_to_how_far_an_update_is_to_move(moved: float, rate: float) -> None:
    assert steered(3e-4, moved, STEERED) == pytest.approx(rate)


def test_the_steered_rate_has_bounds() -> None:
    rate = STEERED.learning_rate
    for _ in range(20):
        rate = steered(rate, 0.0, STEERED)
    assert rate == STEERED.learning_rate * 4
    for _ in range(30):
        rate = steered(rate, 1.0, STEERED)
    assert rate == pytest.approx(1e-4 / 10)
