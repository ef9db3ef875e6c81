"""Errors of calls to actors that have ended, and which of these calls may have begun."""

from remotely.client.end_errors import end_error, last_begun
from remotely.protocol.control import Obituary
from remotely.protocol.numbers import MOST

ROUTE = b"r-our-client"


def test_calls_after_the_last_begun_call_have_not_begun() -> None:
    obituary = Obituary(actor="a", life=2, begun={ROUTE: 7, b"other": 9}, all_begun=True)
    assert last_begun(obituary, 2, ROUTE) == 7
    assert last_begun(obituary, 2, b"r-not-listed") == 0


def test_without_an_obituary_of_this_life_that_lists_the_route_all_calls_may_have_begun() -> None:
    assert last_begun(Obituary(actor="a", life=2, begun={b"other": 9}), 2, ROUTE) == MOST
    assert last_begun(None, 2, ROUTE) == MOST
    other_life = Obituary(actor="a", life=2, begun={ROUTE: 7}, all_begun=True)
    assert last_begun(other_life, 1, ROUTE) == MOST


def test_the_message_of_a_death_has_the_facts_and_its_note_what_to_do() -> None:
    error = end_error("W-1", None, Obituary(actor="a", life=0, exit=3))(True)
    assert str(error) == "W-1 ended with exit code 3; the call may have run"
    (note,) = error.__notes__
    assert "`remotely logs`" in note
    assert "max_restarts=" in note


def test_the_note_of_a_closed_actor_names_the_handle_that_nobody_kept() -> None:
    closed = Obituary(actor="a", life=0, exit=0, why="closed", asked=True)
    (note,) = end_error("W-1", None, closed)(False).__notes__
    assert "dropped its last handle" in note


def test_the_stack_of_a_crash_is_in_the_message_of_the_first_error_alone() -> None:
    stack = "Fatal Python error: Aborted\n\nCurrent thread (most recent call first):\n"
    make_error = end_error("W-1", None, Obituary(actor="a", life=0, exit="SIGABRT", stderr=stack))
    first, second = make_error(True), make_error(False)
    assert stack in str(first)
    assert "Fatal Python error: Aborted (the stack is in its first error" in str(second)
    assert "most recent call first" not in str(second)
    assert second.stderr == stack


def test_each_error_has_the_exception_that_ended_the_actor() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py"\nFileExistsError: there\n'
    make_error = end_error("W-1", None, Obituary(actor="a", life=0, exit=1, stderr=trace))
    assert "FileExistsError: there" in str(make_error(True))
    assert str(make_error(True)).count("\n") == 1
    assert "FileExistsError: there" in str(make_error(True))


def test_the_note_of_a_restarted_actor_does_not_suggest_restarts() -> None:
    error = end_error("W-1", None, Obituary(actor="a", life=0, exit=3, restarting=True))(True)
    assert "max_restarts" not in error.__notes__[0]


def test_an_end_that_says_who_asked_for_it_has_no_note() -> None:
    killed = Obituary(actor="a", life=0, exit="SIGKILL", asked=True, why="killed by pid 7")
    assert not hasattr(end_error("W-1", None, killed)(True), "__notes__")
