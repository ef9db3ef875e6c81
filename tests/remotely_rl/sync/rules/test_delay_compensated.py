import pytest

from remotely_rl import sync
from tests.remotely_rl.sync.quadratic import number, play, round_robin, start


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
