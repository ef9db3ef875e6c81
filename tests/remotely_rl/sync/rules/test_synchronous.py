"""Tests of the synchronous rules."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remotely_rl import sync
from remotely_rl.errors import TrainingError
from remotely_rl.sync.rules.synchronous import StaleSynchronous
from remotely_rl.sync.simulation.dispatcher import RandomOrder
from remotely_rl.sync.simulation.simulator import Simulation
from tests.remotely_rl.sync.quadratic import number, play, round_robin, start


def uneven(client: int, w: torch.Tensor) -> torch.Tensor:
    """Return gradients whose sum depends on the order of additions."""
    return w * (1 / 3 + 1e17 * (client == 1) - 1e17 * (client == 2))


def test_the_order_of_arrival_does_not_change_a_bit() -> None:
    ends = {
        play("synchronous", 4, [*order, *order], gradient=uneven).w[-1]
        for order in itertools.permutations(range(4))
    }

    assert len(ends) == 1


def test_a_step_is_the_mean_and_releases_all_waiting_clients() -> None:
    played = play("synchronous", 3, [2, 0, 1], gradient=lambda client, w: w * (client + 1))

    assert played.w == pytest.approx([1, 1, 1 - 0.1 * 2])
    assert [reply.waits for reply in played.replies] == [True, True, False]
    assert [one.client for one in played.replies[-1].released] == [0, 2]
    assert all(number(one.parameters) == played.w[-1] for one in played.replies[-1].released)
    assert played.staleness == [0, 0, 0]


def test_a_step_waits_for_all_clients() -> None:
    rule = sync.make("synchronous", start(), 3)
    for client in (0, 1):
        assert rule.push(client, start(), 0).waits

    assert rule.version == 0


def test_a_step_does_not_wait_for_a_dead_client() -> None:
    rule = sync.make("synchronous", start(), 3, sync.sgd(0.1))
    rule.push(0, start(), 0)
    rule.push(1, start() * 3, 0)

    released = rule.leave(2)

    assert [one.client for one in released] == [0, 1]
    assert float(rule.parameters) == pytest.approx(1 - 0.1 * 2)


def test_the_contribution_of_a_dead_client_counts() -> None:
    rule = sync.make("synchronous", start(), 2, sync.sgd(0.1))
    rule.push(0, start(), 0)
    assert rule.leave(0) == ()

    reply = rule.push(1, start() * 3, 0)

    assert reply.released == ()
    assert float(rule.parameters) == pytest.approx(1 - 0.1 * 2)


def test_a_step_waits_for_a_client_that_has_rejoined() -> None:
    rule = sync.make("synchronous", start(), 2)
    rule.leave(1)
    assert not rule.push(0, start(), 0).waits

    parameters, version = rule.join(1)

    assert (float(parameters), version) == (float(rule.parameters), 1)
    assert rule.push(0, start(), 1).waits


def test_with_backups_late_contributions_are_dropped() -> None:
    rule = sync.make("backup_workers:backups=1", start(), 3, sync.sgd(0.1))
    rule.push(2, start() * 4, 0)
    reply = rule.push(0, start() * 2, 0)

    assert [one.client for one in reply.released] == [2]
    assert float(rule.parameters) == pytest.approx(0.7)

    late = rule.push(1, start() * 100, 0)

    assert (late.accepted.value, late.staleness, late.waits) == ("dropped", 1, False)
    assert number(late.parameters) == pytest.approx(0.7)
    assert late.version == rule.version == 1


def test_with_too_few_clients_left_a_backup_step_needs_all_of_them() -> None:
    rule = sync.make("backup_workers:backups=1", start(), 3, sync.sgd(0.1))
    rule.push(0, start(), 0)
    rule.leave(1)

    assert [one.client for one in rule.leave(2)] == [0]
    assert rule.version == 1


def test_soft_sync_takes_the_mean_of_c_contributions_scaled_by_staleness() -> None:
    played = play("soft_sync:n=2,at_zero=plus1", 4, [0, 1, 2, 3, 0, 1])

    # 0 and 1 at w = 1; 2 and 3 at w = 1, one step stale; then 0 and 1 at 0.9, one step stale.
    assert played.staleness == [0, 0, 1, 1, 1, 1]
    assert played.w[1::2] == pytest.approx([0.9, 0.85, 0.85 - 0.1 * 0.9 / 2])


def test_with_too_few_clients_left_a_soft_sync_step_needs_all_of_them() -> None:
    rule = sync.make("soft_sync:n=1", start(), 3)
    rule.push(0, start(), 0)
    rule.leave(1)

    assert [one.client for one in rule.leave(2)] == [0]


def test_soft_sync_refuses_more_steps_than_clients() -> None:
    with pytest.raises(TrainingError, match="n must be at most the number of clients, 3, not 4"):
        sync.make("soft_sync:n=4", start(), 3)


def test_a_client_that_is_too_far_ahead_waits_for_the_slowest() -> None:
    rule = sync.make("stale_synchronous:slack=1", start(), 2, sync.sgd(0.1))
    assert not rule.push(0, start(), 0).waits
    assert rule.push(0, start(), 1).waits

    reply = rule.push(1, start(), 0)

    assert not reply.waits
    assert [one.client for one in reply.released] == [0]
    assert number(reply.released[0].parameters) == pytest.approx(0.7)


def test_a_push_moves_the_parameters_even_if_its_client_waits() -> None:
    rule = sync.make("stale_synchronous:slack=0", start(), 2, sync.sgd(0.1))

    assert rule.push(0, start(), 0).waits
    assert float(rule.parameters) == pytest.approx(0.9)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 4), st.integers(0, 1000))
def test_no_client_is_more_than_one_push_beyond_the_slack(
    clients: int, slack: int, seed: int
) -> None:
    rule = sync.make(f"stale_synchronous:slack={slack}", start(), clients)
    assert isinstance(rule, StaleSynchronous)
    simulation = Simulation(rule, lambda client, w: w, RandomOrder(seed))
    for _ in range(60):
        simulation.push()
        assert max(rule.clocks) - min(rule.clocks) <= slack + 1


def test_the_death_of_the_slowest_client_releases_the_others() -> None:
    rule = sync.make("stale_synchronous:slack=0", start(), 3)
    rule.push(0, start(), 0)
    rule.push(1, start(), 0)

    assert [one.client for one in rule.leave(2)] == [0, 1]


def test_a_client_that_has_rejoined_does_not_delay_the_others() -> None:
    rule = sync.make("stale_synchronous:slack=0", start(), 2)
    rule.leave(1)
    for version in range(5):
        assert not rule.push(0, start(), version).waits
    rule.join(1)

    assert rule.push(0, start(), 5).waits
    assert [one.client for one in rule.push(1, start(), 5).released] == [0]


def test_clients_in_turn_all_progress() -> None:
    assert play("stale_synchronous:slack=0", 4, round_robin(4, 40)).rule.version == 40
