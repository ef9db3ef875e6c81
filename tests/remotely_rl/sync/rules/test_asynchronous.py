"""Rules in which each contribution is a step, taken at once."""

import math

import pytest

from remotely_rl import sync
from remotely_rl.errors import TrainingError
from tests.remotely_rl.sync.quadratic import descent, number, play, round_robin, start


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


def test_a_late_gradient_is_moved_by_its_square_times_the_way_between() -> None:
    rule = sync.make("delay_compensated:compensation=0.5", start(), 2, sync.sgd(0.1))
    rule.push(0, start() * 2, 0)  # to 0.8

    rule.push(1, start() * 3, 0)

    # 3 + 0.5 * 9 * (0.8 - 1) = 2.1
    assert float(rule.parameters) == pytest.approx(0.8 - 0.21)


def test_the_adaptive_one_divides_by_the_root_of_the_mean_square() -> None:
    spec = "delay_compensated:compensation=0.5,adaptive=true,decay=0.75"
    rule = sync.make(spec, start(), 2, sync.sgd(0.1))
    rule.push(0, start() * 2, 0)  # no way between: to 0.8, mean square 1

    rule.push(1, start() * 3, 0)  # mean square 0.75 + 0.25 * 9 = 3

    compensated = 3 + 0.5 / 3**0.5 * 9 * (0.8 - 1)
    assert float(rule.parameters) == pytest.approx(0.8 - 0.1 * compensated)


def test_the_way_is_from_what_the_client_was_sent_last() -> None:
    rule = sync.make("delay_compensated:compensation=1", start(), 2, sync.sgd(0.1))
    rule.push(0, start(), 0)
    before = number(rule.push(0, start(), 1).parameters)

    rule.push(0, start(), 2)

    assert float(rule.parameters) == pytest.approx(before - 0.1)


def test_without_compensation_it_is_asynchronous() -> None:
    order = round_robin(4, 40)

    assert play("delay_compensated:compensation=0", 4, order).w == (
        play("asynchronous", 4, order).w
    )


def test_who_goes_on_from_a_checkpoint_is_compensated_from_there() -> None:
    spec = "delay_compensated:compensation=1,adaptive=true"
    before = play(spec, 1, [0] * 5).rule
    after = sync.make(spec, start(), 1, sync.sgd(0.1))
    after.load(before.state())
    for rule in (before, after):
        client = rule.client(0)
        rule.push(0, start(), client.version)

    assert float(before.parameters) == float(after.parameters)


def test_who_was_refused_is_compensated_from_what_it_was_given_then() -> None:
    rule = sync.make("delay_compensated:compensation=1", start(), 2, sync.sgd(0.1))
    before = number(rule.push(0, start() * 2, 0).parameters)

    assert number(rule.restart(1)) == before
    rule.push(1, start(), 1)

    assert float(rule.parameters) == pytest.approx(before - 0.1)


def test_the_adaptive_one_divides_by_no_zero() -> None:
    spec = "delay_compensated:compensation=1,adaptive=true,decay=0"
    rule = sync.make(spec, start(), 2, sync.sgd(0.1))
    rule.push(0, start(), 0)

    rule.push(1, start() * 0, 0)  # the mean square is 0 now

    assert float(rule.parameters) == pytest.approx(0.9)
