import pytest

from remotely_rl import sync
from remotely_rl.errors import TrainingError
from tests.remotely_rl.sync.quadratic import play, round_robin, start


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
