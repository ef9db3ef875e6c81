import math

import pytest

from remotely_rl import sync
from remotely_rl.errors import TrainingError
from tests.remotely_rl.sync.quadratic import descent, play, round_robin, start


def test_three_clients_in_turn_give_the_trace_worked_by_hand() -> None:
    played = play("sasgd", 3, round_robin(3, 5))

    assert played.staleness == [0, 1, 2, 2, 2]
    assert played.w == pytest.approx([0.9, 0.8, 0.75, 0.705, 0.665], abs=1e-12)


def test_the_other_reading_halves_the_rate_at_a_staleness_of_one() -> None:
    played = play("sasgd:at_zero=plus1", 2, round_robin(2, 4))

    assert played.w == pytest.approx([0.9, 0.85, 0.805, 0.7625], abs=1e-12)


@pytest.mark.parametrize("reading", ["max1", "plus1"])
def test_one_client_is_gradient_descent(reading: str) -> None:
    assert play(f"sasgd:at_zero={reading}", 1, [0] * 9).w == descent(9)


@pytest.mark.parametrize("clients", [1, 2])
def test_up_to_two_clients_in_turn_it_is_asynchronous(clients: int) -> None:
    order = round_robin(clients, 30)

    assert play("sasgd", clients, order).w == play("asynchronous", clients, order).w


def test_a_reading_that_is_not_known_is_refused() -> None:
    with pytest.raises(TrainingError, match="at_zero must be max1 or plus1, not 'zero'"):
        sync.make("sasgd:at_zero=zero", start(), 2)


def test_the_exponential_penalty_falls_by_the_same_factor_each_step() -> None:
    steps = []
    for clients in range(1, 6):  # of whom the last is as stale as there are others
        order = round_robin(clients, clients)
        w = [1.0, *play("exponential_penalty:kappa=0.5", clients, order).w]
        steps.append(w[-2] - w[-1])

    assert steps == pytest.approx([0.1 * math.exp(-0.5 * tau) for tau in range(5)])


def test_without_a_penalty_it_is_asynchronous() -> None:
    order = round_robin(5, 40)

    assert play("exponential_penalty:kappa=0", 5, order).w == play("asynchronous", 5, order).w
