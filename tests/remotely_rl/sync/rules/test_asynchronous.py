import math

import pytest

from tests.remotely_rl.sync.quadratic import descent, play, round_robin


def test_two_clients_in_turn_follow_the_recurrence_of_a_delay_of_one() -> None:
    played = play("asynchronous", 2, round_robin(2, 5))

    assert played.w == pytest.approx([0.9, 0.8, 0.71, 0.63, 0.559], abs=1e-12)


def test_one_client_is_gradient_descent_bit_by_bit() -> None:
    assert play("asynchronous", 1, [0] * 20).w == descent(20)


def test_clients_in_turn_are_all_others_behind() -> None:
    played = play("asynchronous", 4, round_robin(4, 12))

    assert played.staleness == [0, 1, 2, 3] + [3] * 8
    assert all(played.pulls)


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_it_is_stable_up_to_the_rate_that_theory_says_and_not_beyond(delay: int) -> None:
    edge = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    order = round_robin(delay + 1, 1000)

    assert abs(play("asynchronous", delay + 1, order, rate=0.97 * edge).w[-1]) < 1
    assert abs(play("asynchronous", delay + 1, order, rate=1.03 * edge).w[-1]) > 1
