import pytest

from tests.remotely_rl.sync.quadratic import number, play


def test_client_and_centre_move_towards_each_other_by_the_moving_rate() -> None:
    played = play("elastic_averaging:period=2,moving_rate=0.25", 2, [0, 1, 0])

    # Client 0 takes two steps from 1 to 0.81; centre 1 -> 0.9525, client -> 0.8575.
    assert played.w[0] == pytest.approx(0.9525)
    assert number(played.replies[0].parameters) == pytest.approx(0.8575)
    # Client 1 too, and meets the centre where that is now.
    assert played.w[1] == pytest.approx(0.9525 - 0.25 * (0.9525 - 0.81))
    # Client 0 goes on from where it was left.
    third = 0.8575 * 0.81
    assert played.w[2] == pytest.approx(played.w[1] - 0.25 * (played.w[1] - third))


def test_the_moving_rate_is_by_default_that_of_the_paper() -> None:
    played = play("elastic_averaging:period=1", 3, [0])

    assert played.w[0] == pytest.approx(1 - 0.3 * 0.1)
