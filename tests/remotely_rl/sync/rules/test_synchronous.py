"""Rules in which clients wait for each other."""

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
from tests.remotely_rl.sync.quadratic import descent, number, play, round_robin, start


def uneven(client: int, w: torch.Tensor) -> torch.Tensor:
    """Gradients whose sum depends on the order in which it is taken."""
    return w * (1 / 3 + 1e17 * (client == 1) - 1e17 * (client == 2))


def test_permuted_arrivals_give_the_same_bits() -> None:
    ends = {
        play("synchronous", 4, [*order, *order], gradient=uneven).w[-1]
        for order in itertools.permutations(range(4))
    }

    assert len(ends) == 1


def test_a_step_is_the_mean_and_releases_all_who_waited() -> None:
    played = play("synchronous", 3, [2, 0, 1], gradient=lambda client, w: w * (client + 1))

    assert played.w == pytest.approx([1, 1, 1 - 0.1 * 2])
    assert [reply.waits for reply in played.replies] == [True, True, False]
    assert [one.client for one in played.replies[-1].released] == [0, 2]
    assert all(number(one.parameters) == played.w[-1] for one in played.replies[-1].released)
    assert played.staleness == [0, 0, 0]


def test_one_client_is_gradient_descent_bit_by_bit() -> None:
    assert play("synchronous", 1, [0] * 20).w == descent(20)


def test_without_one_client_nothing_moves() -> None:
    rule = sync.make("synchronous", start(), 3)
    for client in (0, 1):
        assert rule.push(client, start(), 0).waits

    assert rule.version == 0


def test_a_dead_client_is_not_waited_for() -> None:
    rule = sync.make("synchronous", start(), 3, sync.sgd(0.1))
    rule.push(0, start(), 0)
    rule.push(1, start() * 3, 0)

    released = rule.leave(2)

    assert [one.client for one in released] == [0, 1]
    assert float(rule.parameters) == pytest.approx(1 - 0.1 * 2)


def test_what_a_client_pushed_before_it_died_counts_and_nobody_answers_it() -> None:
    rule = sync.make("synchronous", start(), 2, sync.sgd(0.1))
    rule.push(0, start(), 0)
    assert rule.leave(0) == ()

    reply = rule.push(1, start() * 3, 0)

    assert reply.released == ()
    assert float(rule.parameters) == pytest.approx(1 - 0.1 * 2)


def test_a_client_that_is_back_is_waited_for_again() -> None:
    rule = sync.make("synchronous", start(), 2)
    rule.leave(1)
    assert not rule.push(0, start(), 0).waits

    parameters, version = rule.join(1)

    assert (float(parameters), version) == (float(rule.parameters), 1)
    assert rule.push(0, start(), 1).waits


def test_a_step_is_of_the_first_and_the_late_are_dropped_and_go_on() -> None:
    rule = sync.make("backup_workers:backups=1", start(), 3, sync.sgd(0.1))
    rule.push(2, start() * 4, 0)
    reply = rule.push(0, start() * 2, 0)

    assert [one.client for one in reply.released] == [2]
    assert float(rule.parameters) == pytest.approx(0.7)

    late = rule.push(1, start() * 100, 0)

    assert (late.accepted.value, late.staleness, late.waits) == ("dropped", 1, False)
    assert number(late.parameters) == pytest.approx(0.7)
    assert late.version == rule.version == 1


def test_without_backups_it_is_synchronous() -> None:
    order = round_robin(3, 30)

    assert play("backup_workers:backups=0", 3, order).w == play("synchronous", 3, order).w


def test_with_too_few_alive_the_step_is_of_all_who_live() -> None:
    rule = sync.make("backup_workers:backups=1", start(), 3, sync.sgd(0.1))
    rule.push(0, start(), 0)
    rule.leave(1)

    assert [one.client for one in rule.leave(2)] == [0]
    assert rule.version == 1


@pytest.mark.parametrize("clients", [1, 3, 8])
def test_one_step_a_round_without_division_is_synchronous(clients: int) -> None:
    order = round_robin(clients, 5 * clients)

    soft = play("soft_sync:n=1,at_zero=none", clients, order)

    assert soft.w == play("synchronous", clients, order).w


def test_as_many_steps_as_clients_is_staleness_scaled() -> None:
    order = round_robin(3, 30)

    assert play("soft_sync:n=3", 3, order).w == play("sasgd", 3, order).w


def test_two_steps_a_round_of_four_take_the_mean_of_two_scaled_by_staleness() -> None:
    played = play("soft_sync:n=2,at_zero=plus1", 4, [0, 1, 2, 3, 0, 1])

    # 0 and 1 at w = 1; 2 and 3 too, one step stale; then 0 and 1 at 0.9, one step stale.
    assert played.staleness == [0, 0, 1, 1, 1, 1]
    assert played.w[1::2] == pytest.approx([0.9, 0.85, 0.85 - 0.1 * 0.9 / 2])


def test_fewer_alive_than_a_step_is_made_of_are_enough() -> None:
    rule = sync.make("soft_sync:n=1", start(), 3)
    rule.push(0, start(), 0)
    rule.leave(1)

    assert [one.client for one in rule.leave(2)] == [0]


def test_more_steps_than_clients_are_refused() -> None:
    with pytest.raises(TrainingError, match="n must be at most the number of clients, 3, not 4"):
        sync.make("soft_sync:n=4", start(), 3)


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
