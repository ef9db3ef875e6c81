"""The limit of restarts."""

from remotely.protocol.lease import RESTARTS_WITHIN_S
from remotely.protocol.restart_limit import RestartLimit


def test_as_many_restarts_are_allowed_as_the_limit_says() -> None:
    limit = RestartLimit()
    assert [limit.allow(2, now) for now in (0.0, 1.0, 2.0, 3.0)] == [True, True, False, False]


def test_each_restart_is_forgotten_after_the_window() -> None:
    limit = RestartLimit()
    limit.allow(2, 0.0)
    limit.allow(2, 5.0)
    assert not limit.allow(2, RESTARTS_WITHIN_S - 0.1)
    assert limit.allow(2, RESTARTS_WITHIN_S)
    assert not limit.allow(2, RESTARTS_WITHIN_S + 4.9)
    assert limit.allow(2, RESTARTS_WITHIN_S + 5.0)


def test_a_restart_that_is_refused_does_not_count() -> None:
    limit = RestartLimit()
    limit.allow(1, 0.0)
    assert not limit.allow(1, 599.0)
    assert limit.allow(1, RESTARTS_WITHIN_S)


def test_a_limit_of_none_allows_no_restart() -> None:
    assert not RestartLimit().allow(0, 0.0)
