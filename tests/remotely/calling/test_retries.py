"""What becomes of a call whose outcome is lost: so often, and never of an answer."""

from typing import Any

import pytest

from remotely.calling.send_queue import RetriedFuture
from remotely.errors import ActorDied, CallTimeout, WorkerLost
from remotely.futures.future import CallFuture
from tests.clusters import wait_until


def lost_and_then(*outcomes: object, retries: int) -> tuple[RetriedFuture, list[int]]:
    """Return the future of a call whose tries end so, and how many were made, one by now.

    An error among the outcomes is a loss.
    """
    made = [0]

    def send(future: CallFuture[Any]) -> None:
        outcome = outcomes[made[0]]
        made[0] += 1
        if isinstance(outcome, BaseException):
            future.lose(outcome)
        else:
            future.set_result(outcome)

    future = RetriedFuture("a call", None, send, retries)
    send(future)
    return future, made


@pytest.mark.parametrize("lost", [ActorDied("x"), WorkerLost("x")])
def test_a_call_whose_outcome_is_lost_is_sent_again(lost: Exception) -> None:
    future, made = lost_and_then(lost, lost, 7, retries=2)
    wait_until(future.done, "nobody had to ask")
    assert future.result() == 7
    assert made == [3]


def test_after_the_last_retry_the_loss_is_raised() -> None:
    future, made = lost_and_then(ActorDied("first"), ActorDied("second"), retries=1)
    with pytest.raises(ActorDied, match="second"):
        future.result(timeout=40)
    assert made == [2]


def test_the_last_loss_says_that_the_call_may_have_run_if_any_try_may_have() -> None:
    future, _ = lost_and_then(ActorDied("x", may_have_run=True), WorkerLost("x", False), retries=1)
    error = future.exception(timeout=40)
    assert isinstance(error, WorkerLost)
    assert error.may_have_run


def test_what_the_method_raised_is_an_answer_even_if_it_is_a_loss_of_its_own() -> None:
    made: list[int] = []
    for error in (ValueError("mine"), ActorDied("another that it had called")):
        future = RetriedFuture("a call", None, lambda _: made.append(1), 5)
        future.set_exception(error)
        assert (future.exception(), made) == (error, [])


def test_a_timeout_is_no_loss_and_holds_for_all_tries_together() -> None:
    future = RetriedFuture("a call", None, lambda _: None, 3)
    future.lose(WorkerLost("x"))
    with pytest.raises(CallTimeout):
        future.result(timeout=0.01)
    future.set_result(1)
    assert future.result() == 1


def test_done_callbacks_run_after_the_last_try() -> None:
    told: list[object] = []
    future = RetriedFuture("a call", None, lambda f: f.set_result(5), 1)
    future.add_done_callback(lambda future: told.append(future.result()))
    future.lose(WorkerLost("x"))
    wait_until(lambda: told, "it was told")
    assert told == [5]


def test_a_call_that_has_its_answer_is_not_made_again_when_its_connection_ends() -> None:
    future = RetriedFuture("a call", None, lambda _: pytest.fail("made again"), 1)
    future.settle(7, None)
    future.lose(ActorDied("gone"))
    assert future.result(0) == 7
