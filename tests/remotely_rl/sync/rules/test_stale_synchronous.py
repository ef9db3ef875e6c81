import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remotely_rl import sync
from remotely_rl.sync.rules.stale_synchronous import StaleSynchronous
from remotely_rl.sync.simulation.dispatcher import RandomOrder
from remotely_rl.sync.simulation.simulator import Simulation
from tests.remotely_rl.sync.quadratic import number, play, round_robin, start


def test_who_is_too_far_ahead_waits_until_the_slowest_has_pushed() -> None:
    rule = sync.make("stale_synchronous:slack=1", start(), 2, sync.sgd(0.1))
    assert not rule.push(0, start(), 0).waits
    assert rule.push(0, start(), 1).waits

    reply = rule.push(1, start(), 0)

    assert not reply.waits
    assert [one.client for one in reply.released] == [0]
    assert number(reply.released[0].parameters) == pytest.approx(0.7)


def test_a_push_moves_the_parameters_though_its_client_waits() -> None:
    rule = sync.make("stale_synchronous:slack=0", start(), 2, sync.sgd(0.1))

    assert rule.push(0, start(), 0).waits
    assert float(rule.parameters) == pytest.approx(0.9)


def test_with_endless_slack_it_is_asynchronous() -> None:
    order = [0, 0, 0, 1, 0, 2, 2, 0]

    assert play("stale_synchronous:slack=99", 3, order).w == play("asynchronous", 3, order).w


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 1000))
def test_nobody_is_ever_further_ahead_than_one_push_beyond_the_slack(
    clients: int, slack: int, seed: int
) -> None:
    rule = sync.make(f"stale_synchronous:slack={slack}", start(), clients)
    assert isinstance(rule, StaleSynchronous)
    simulation = Simulation(rule, lambda client, w: w, RandomOrder(seed))
    for _ in range(60):
        simulation.push()
        assert max(rule.clocks) - min(rule.clocks) <= slack + 1


def test_a_dead_slowest_lets_the_others_go() -> None:
    rule = sync.make("stale_synchronous:slack=0", start(), 3)
    rule.push(0, start(), 0)
    rule.push(1, start(), 0)

    assert [one.client for one in rule.leave(2)] == [0, 1]


def test_who_comes_back_holds_up_nobody() -> None:
    rule = sync.make("stale_synchronous:slack=0", start(), 2)
    rule.leave(1)
    for version in range(5):
        assert not rule.push(0, start(), version).waits
    rule.join(1)

    assert rule.push(0, start(), 5).waits
    assert [one.client for one in rule.push(1, start(), 5).released] == [0]


def test_clients_in_turn_never_wait_for_long() -> None:
    assert play("stale_synchronous:slack=0", 4, round_robin(4, 40)).rule.version == 40
