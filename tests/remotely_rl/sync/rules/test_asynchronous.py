"""Tests of the asynchronous rules."""

import math

import pytest

from remotely_rl import sync
from remotely_rl.errors import TrainingError
from tests.remotely_rl.sync.quadratic import number, play, round_robin, start


def test_two_clients_in_turn_follow_the_recurrence_of_delay_1() -> None:
    played = play("asynchronous", 2, round_robin(2, 5))

    assert played.w == pytest.approx([0.9, 0.8, 0.71, 0.63, 0.559], abs=1e-12)


def test_the_staleness_of_n_clients_in_turn_is_n_minus_1() -> None:
    played = play("asynchronous", 4, round_robin(4, 12))

    assert played.staleness == [0, 1, 2, 3] + [3] * 8
    assert all(played.pulls)


@pytest.mark.parametrize("delay", [0, 1, 2, 3])
def test_it_is_stable_up_to_the_theoretical_rate(delay: int) -> None:
    edge = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    order = round_robin(delay + 1, 1000)

    assert abs(play("asynchronous", delay + 1, order, rate=0.97 * edge).w[-1]) < 1
    assert abs(play("asynchronous", delay + 1, order, rate=1.03 * edge).w[-1]) > 1


def test_sasgd_gives_the_trace_computed_by_hand() -> None:
    played = play("sasgd", 3, round_robin(3, 5))

    assert played.staleness == [0, 1, 2, 2, 2]
    assert played.w == pytest.approx([0.9, 0.8, 0.75, 0.705, 0.665], abs=1e-12)


def test_with_plus1_the_step_is_halved_at_staleness_1() -> None:
    played = play("sasgd:at_zero=plus1", 2, round_robin(2, 4))

    assert played.w == pytest.approx([0.9, 0.85, 0.805, 0.7625], abs=1e-12)


def test_an_unknown_reading_is_refused() -> None:
    with pytest.raises(TrainingError, match="at_zero must be max1 or plus1, not 'zero'"):
        sync.make("sasgd:at_zero=zero", start(), 2)


def test_the_exponential_penalty_decays_by_a_constant_factor() -> None:
    steps = []
    for clients in range(1, 6):  # the last one is as stale as there are others
        order = round_robin(clients, clients)
        w = [1.0, *play("exponential_penalty:kappa=0.5", clients, order).w]
        steps.append(w[-2] - w[-1])

    assert steps == pytest.approx([0.1 * math.exp(-0.5 * tau) for tau in range(5)])


def test_a_late_gradient_is_corrected_by_its_square_times_the_difference() -> None:
    rule = sync.make("delay_compensated:compensation=0.5", start(), 2, sync.sgd(0.1))
    rule.push(0, start() * 2, 0)  # to 0.8

    rule.push(1, start() * 3, 0)

    # 3 + 0.5 * 9 * (0.8 - 1) = 2.1
    assert float(rule.parameters) == pytest.approx(0.8 - 0.21)


def test_the_adaptive_correction_is_divided_by_the_root_mean_square() -> None:
    spec = "delay_compensated:compensation=0.5,adaptive=true,decay=0.75"
    rule = sync.make(spec, start(), 2, sync.sgd(0.1))
    rule.push(0, start() * 2, 0)  # no difference: to 0.8, mean square 1

    rule.push(1, start() * 3, 0)  # mean square 0.75 + 0.25 * 9 = 3

    compensated = 3 + 0.5 / 3**0.5 * 9 * (0.8 - 1)
    assert float(rule.parameters) == pytest.approx(0.8 - 0.1 * compensated)


def test_the_difference_is_to_the_parameters_sent_last() -> None:
    rule = sync.make("delay_compensated:compensation=1", start(), 2, sync.sgd(0.1))
    rule.push(0, start(), 0)
    before = number(rule.push(0, start(), 1).parameters)

    rule.push(0, start(), 2)

    assert float(rule.parameters) == pytest.approx(before - 0.1)


def test_after_a_checkpoint_compensation_starts_from_its_parameters() -> None:
    spec = "delay_compensated:compensation=1,adaptive=true"
    before = play(spec, 1, [0] * 5).rule
    after = sync.make(spec, start(), 1, sync.sgd(0.1))
    after.load(before.state())
    for rule in (before, after):
        client = rule.client(0)
        rule.push(0, start(), client.version)

    assert float(before.parameters) == float(after.parameters)


def test_after_a_restart_compensation_starts_from_the_new_parameters() -> None:
    rule = sync.make("delay_compensated:compensation=1", start(), 2, sync.sgd(0.1))
    before = number(rule.push(0, start() * 2, 0).parameters)

    assert number(rule.restart(1)) == before
    rule.push(1, start(), 1)

    assert float(rule.parameters) == pytest.approx(before - 0.1)


def test_the_adaptive_correction_never_divides_by_zero() -> None:
    spec = "delay_compensated:compensation=1,adaptive=true,decay=0"
    rule = sync.make(spec, start(), 2, sync.sgd(0.1))
    rule.push(0, start(), 0)

    rule.push(1, start() * 0, 0)  # the mean square is 0 now

    assert float(rule.parameters) == pytest.approx(0.9)
