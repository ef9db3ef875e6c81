"""Tests of dispatchers."""

import pytest

from remotely_rl import sync
from remotely_rl.errors import SyncError, TrainingError
from remotely_rl.sync.simulation.dispatcher import (
    Event,
    EventKind,
    FixedOrder,
    Outage,
    RandomOrder,
    TimedOrder,
    Timing,
)
from remotely_rl.sync.simulation.simulator import Simulation
from tests.remotely_rl.sync.quadratic import start


def turns(
    dispatcher: RandomOrder | TimedOrder | FixedOrder, clients: int, count: int
) -> list[Event]:
    """Return the first events, if every client is answered immediately."""
    dispatcher.begin(clients)
    seen: list[Event] = []
    while len(seen) < count:
        event = dispatcher.next()
        if event is None:
            break
        seen.append(event)
        if event.kind is not EventKind.LEAVE:
            dispatcher.answered(event.client, 0)
    return seen


def clients_of(events: list[Event]) -> list[int]:
    return [event.client for event in events]


def test_a_fixed_order_is_followed_to_its_end() -> None:
    assert clients_of(turns(FixedOrder([2, 0, 1]), 3, 10)) == [2, 0, 1]


def test_the_seed_determines_the_random_order() -> None:
    assert clients_of(turns(RandomOrder(1), 9, 50)) == clients_of(turns(RandomOrder(1), 9, 50))
    assert clients_of(turns(RandomOrder(1), 9, 50)) != clients_of(turns(RandomOrder(2), 9, 50))


def test_without_weights_clients_have_equal_shares() -> None:
    drawn = clients_of(turns(RandomOrder(0), 4, 8000))

    for client in range(4):
        # Four standard deviations of a binomial.
        assert abs(drawn.count(client) - 2000) < 4 * (8000 * 0.25 * 0.75) ** 0.5


def test_with_weights_shares_are_proportional() -> None:
    drawn = clients_of(turns(RandomOrder(0, weights=[1, 3, 0]), 3, 8000))

    assert drawn.count(2) == 0
    assert abs(drawn.count(0) - 2000) < 4 * (8000 * 0.25 * 0.75) ** 0.5


def test_waiting_clients_are_not_drawn() -> None:
    dispatcher = RandomOrder(0)
    dispatcher.begin(3)

    drawn = [dispatcher.next() for _ in range(3)]

    assert sorted(event.client for event in drawn if event) == [0, 1, 2]
    assert dispatcher.next() is None


def test_without_jitter_a_client_of_slowness_2_pushes_half_as_often() -> None:
    clocked = TimedOrder(Timing(compute_s=1.0, jitter=0.0), pushed=0, slowness=[1.0, 2.0])

    events = turns(clocked, 2, 6)

    assert [(event.client, event.time_s) for event in events] == [
        (0, 1.0),
        (1, 2.0),
        (0, 2.0),
        (0, 3.0),
        (1, 4.0),
        (0, 4.0),
    ]


def test_a_busy_server_processes_one_push_at_a_time() -> None:
    clocked = TimedOrder(Timing(compute_s=1.0, jitter=0.0, server_s=0.25), pushed=0)

    assert [event.time_s for event in turns(clocked, 3, 4)] == [1.25, 1.5, 1.75, 2.5]


def test_bandwidth_and_latency_count_in_both_directions() -> None:
    clock = Timing(compute_s=1.0, jitter=0.0, latency_s=0.1, bandwidth=1000.0)
    clocked = TimedOrder(clock, pushed=200)
    clocked.begin(1)

    first = clocked.next()
    clocked.answered(0, 500)
    second = clocked.next()

    assert first is not None
    assert second is not None
    assert first.time_s == pytest.approx(1.3)
    assert second.time_s == pytest.approx(1.3 + 0.6 + 1.3)


def test_jitter_keeps_the_mean() -> None:
    events = turns(TimedOrder(Timing(compute_s=1.0, jitter=0.5), pushed=0, seed=1), 1, 4000)

    assert events[-1].time_s / 4000 == pytest.approx(1.0, abs=4 * 0.5 / 4000**0.5)


def test_a_client_loses_its_work_in_an_outage_and_rejoins() -> None:
    clocked = TimedOrder(
        Timing(compute_s=1.0, jitter=0.0), pushed=0, outages=[Outage(1, 0.5, 2.25)]
    )

    events = [(event.kind.value, event.client, event.time_s) for event in turns(clocked, 2, 6)]

    assert events == [
        ("leave", 1, 0.5),
        ("push", 0, 1.0),
        ("push", 0, 2.0),
        ("join", 1, 2.25),
        ("push", 0, 3.0),
        ("push", 1, 3.25),
    ]


@pytest.mark.parametrize("rule", ["synchronous", "semi_async:n=2", "stale_synchronous"])
def test_a_simulation_goes_on_through_an_outage(rule: str) -> None:
    clocked = TimedOrder(Timing(compute_s=1.0), pushed=8, seed=1, outages=[Outage(2, 3.5, 9.2)])
    simulation = Simulation(sync.make(rule, start(), 3), lambda client, w: w, clocked)

    rows = simulation.run(60)

    assert rows[-1].iteration == 60
    assert simulation.rule.live == {0, 1, 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Timing(compute_s=-1), "compute_s must be at least 0"),
        (lambda: RandomOrder(weights=[0, 0]), "one of them above it"),
        (lambda: RandomOrder(weights=[1.0]).begin(2), "1 weights were given for 2 clients"),
    ],
)
def test_what_cannot_be_is_refused(make: object, message: str) -> None:
    with pytest.raises((SyncError, TrainingError), match=message):
        make()  # type: ignore[operator]
