"""Errors of calls to actors that have ended, and which of these calls may have begun."""

from remotely.client.end_errors import end_error, last_begun
from remotely.protocol.control import Obituary
from remotely.protocol.numbers import MOST

ROUTE = b"r-our-client"


def test_calls_after_the_last_that_has_begun_have_not() -> None:
    obituary = Obituary(actor="a", life=2, begun={ROUTE: 7, b"other": 9}, all_begun=True)
    assert last_begun(obituary, 2, ROUTE) == 7
    assert last_begun(obituary, 2, b"r-not-listed") == 0


def test_where_it_is_not_known_all_may_have() -> None:
    some = Obituary(actor="a", life=2, begun={b"other": 9})
    assert last_begun(some, 2, ROUTE) == MOST
    assert last_begun(None, 2, ROUTE) == MOST


def test_the_end_of_another_life_says_nothing() -> None:
    obituary = Obituary(actor="a", life=2, begun={ROUTE: 7}, all_begun=True)
    assert last_begun(obituary, 1, ROUTE) == MOST


def test_a_death_has_the_facts_as_its_message_and_what_to_do_as_a_note() -> None:
    error = end_error("W-1", None, Obituary(actor="a", life=0, exit=3))(True)
    assert str(error) == "W-1 ended with 3; the call may have run"
    (note,) = error.__notes__
    assert "`remotely logs`" in note
    assert "max_restarts=" in note


def test_an_actor_that_is_restarted_anyway_is_not_told_of_restarts() -> None:
    error = end_error("W-1", None, Obituary(actor="a", life=0, exit=3, restarting=True))(True)
    assert "max_restarts" not in error.__notes__[0]


def test_an_end_that_was_asked_for_has_no_note() -> None:
    killed = Obituary(actor="a", life=0, exit="SIGKILL", asked=True, why="killed by pid 7")
    assert not hasattr(end_error("W-1", None, killed)(True), "__notes__")
