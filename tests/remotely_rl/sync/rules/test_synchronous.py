import itertools

import pytest
import torch

from remotely_rl import sync
from tests.remotely_rl.sync.quadratic import descent, number, play, start


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
