"""Retries of calls whose outcome is lost."""

from typing import Any

import pytest

from remotely.calling.send_queue import RetriedFuture
from remotely.errors import ActorDied, CallTimeout, WorkerLost
from remotely.futures.future import CallFuture


def lost_and_then(*outcomes: object, retries: int) -> tuple[RetriedFuture, list[int]]:
    """Return the future of a call whose attempts have these outcomes, and the count of attempts.

    An error among the outcomes is a loss.  The first attempt has been made.
    """
    attempts = [0]

    def send(future: CallFuture[Any]) -> None:
        outcome = outcomes[attempts[0]]
        attempts[0] += 1
        if isinstance(outcome, BaseException):
            future.lose(outcome)
        else:
            future.set_result(outcome)

    future = RetriedFuture("a call", None, send, retries)
    send(future)
    return future, attempts


@pytest.mark.parametrize("lost", [ActorDied("x"), WorkerLost("x")])
def test_a_call_whose_outcome_is_lost_is_sent_again(lost: Exception) -> None:
    future, attempts = lost_and_then(lost, lost, 7, retries=2)
    assert future.done()
    assert future.result() == 7
    assert attempts == [3]


def test_after_the_last_retry_the_loss_is_raised() -> None:
    future, attempts = lost_and_then(ActorDied("first"), ActorDied("second"), retries=1)
    with pytest.raises(ActorDied, match="second"):
        future.result(timeout=40)
    assert attempts == [2]


def test_the_error_says_that_the_call_may_have_run_if_any_attempt_may_have() -> None:
    future, _ = lost_and_then(ActorDied("x", may_have_run=True), WorkerLost("x", False), retries=1)
    error = future.exception(timeout=40)
    assert isinstance(error, WorkerLost)
    assert error.may_have_run


def test_an_error_that_the_method_raised_is_not_retried_even_if_it_is_an_actor_died() -> None:
    for error in (ValueError("mine"), ActorDied("another actor")):
        future = RetriedFuture("a call", None, lambda _: pytest.fail("retried"), 5)
        future.set_exception(error)
        assert future.exception() is error


def test_a_timeout_covers_all_attempts_and_loses_no_result() -> None:
    future = RetriedFuture("a call", None, lambda _: None, 3)
    future.lose(WorkerLost("x"))
    with pytest.raises(CallTimeout):
        future.result(timeout=0.01)
    future.set_result(1)
    assert future.result() == 1


def test_done_callbacks_run_after_the_last_attempt() -> None:
    results: list[object] = []
    future = RetriedFuture("a call", None, lambda f: f.set_result(5), 1)
    future.add_done_callback(lambda future: results.append(future.result()))
    future.lose(WorkerLost("x"))
    assert results == [5]


def test_a_call_with_an_outcome_is_not_retried_when_its_connection_ends() -> None:
    future = RetriedFuture("a call", None, lambda _: pytest.fail("retried"), 1)
    future.settle(7, None)
    future.lose(ActorDied("gone"))
    assert future.result(0) == 7
