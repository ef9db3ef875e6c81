"""The one way to a retry: only where it was asked for, so often, and never of an answer."""

import os
import signal
import threading
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import ActorDied, CallTimeout, NotConnected, WorkerLost
from remotely.futures.future import CallFuture
from remotely.objects.idempotent import RetriedFuture, retries_of
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
def test_a_lost_outcome_is_asked_for_again_by_itself(lost: Exception) -> None:
    future, made = lost_and_then(lost, lost, 7, retries=2)
    wait_until(future.done, "nobody had to ask")
    assert future.result() == 7
    assert made == [3]


def test_after_the_last_retry_the_loss_is_told() -> None:
    future, made = lost_and_then(ActorDied("first"), ActorDied("second"), retries=1)
    with pytest.raises(ActorDied, match="second"):
        future.result(timeout=10)
    assert made == [2]


def test_what_the_method_raised_is_an_answer_even_if_it_is_a_loss_of_its_own() -> None:
    made: list[int] = []
    for error in (ValueError("mine"), ActorDied("another that it had called")):
        future = RetriedFuture("a call", None, lambda _: made.append(1), 5)
        future.set_exception(error)
        assert (future.exception(), made) == (error, [])


def test_another_failure_to_send_it_again_ends_it() -> None:
    def send(_: CallFuture[Any]) -> None:
        raise NotConnected("shut down")

    future = RetriedFuture("a call", None, send, 5)
    future.lose(WorkerLost("x"))
    assert isinstance(future.exception(timeout=10), NotConnected)


def test_a_timeout_is_no_loss_and_holds_for_all_tries_together() -> None:
    future = RetriedFuture("a call", None, lambda _: None, 3)
    future.lose(WorkerLost("x"))
    with pytest.raises(CallTimeout):
        future.result(timeout=0.01)
    future.set_result(1)
    assert future.result() == 1


def test_who_is_to_be_told_is_told_of_the_last_try() -> None:
    told: list[object] = []
    future = RetriedFuture("a call", None, lambda f: f.set_result(5), 1)
    future.add_done_callback(lambda future: told.append(future.result()))
    future.lose(WorkerLost("x"))
    wait_until(lambda: told, "it was told")
    assert told == [5]


@pytest.mark.parametrize("retries", [0, -1, 1.5, True, "2"])
def test_a_number_of_retries_that_is_none_is_refused(retries: Any) -> None:
    with pytest.raises(ValueError, match="whole number from 1 up"):
        remotely.idempotent(retries=retries)


def test_a_method_without_the_mark_is_never_tried_again() -> None:
    assert retries_of(Frail.die_once) == 3
    assert retries_of(Frail.die_always) == 0


@remotely.remote_class(max_restarts=10)
class Frail:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    @remotely.idempotent(retries=3)
    def die_once(self) -> int:
        lives = len(list(self.folder.iterdir()))
        (self.folder / str(lives)).touch()
        if not lives:
            signal.raise_signal(signal.SIGSEGV)
        return lives

    def die_always(self) -> None:
        (self.folder / str(os.getpid())).touch()
        os._exit(3)


@pytest.mark.parametrize("way", ["call", "submit", "callback", "wait", "group"])
def test_an_idempotent_call_outlives_its_actor(cluster: str, tmp_path: Path, way: str) -> None:
    frail: Any = Frail(str(tmp_path))
    if way == "call":
        assert frail.die_once() == 1
    elif way == "group":
        assert remotely.Group([frail]).die_once() == [1]
    else:
        future = frail.die_once.submit()
        if way == "callback":
            future.add_done_callback(lambda _: None)
        if way == "wait":
            assert wait([future], timeout=30).done
        assert future.result(timeout=30) == 1


@pytest.mark.promise("exit_status")
def test_another_is_told_and_its_actor_is_made_anew(cluster: str, tmp_path: Path) -> None:
    frail = Frail(str(tmp_path))
    with pytest.raises(ActorDied, match="ended with 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ActorDied, match="ended with 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_call_that_has_its_answer_is_not_made_again_when_its_connection_ends() -> None:
    future = RetriedFuture("a call", None, lambda _: pytest.fail("made again"), 1)
    future.settle(7, None)
    future.lose(ActorDied("gone"))
    assert future.result(0) == 7


def test_thousands_of_lost_calls_are_made_again_in_their_order_by_one_thread() -> None:
    actor, alive = object(), threading.Event()  # its next life is long in coming
    sent: list[int] = []
    threads: set[int] = set()

    def future_of(number: int) -> RetriedFuture:
        def again(future: CallFuture[Any]) -> None:
            alive.wait()
            threads.add(threading.get_ident())
            sent.append(number)
            future.set_result(number)

        return RetriedFuture("a call", actor, again, 1)

    futures = [future_of(number) for number in range(3000)]
    for future in futures:
        future.lose(ActorDied("all of its calls at once"))
    assert len([t for t in threading.enumerate() if t.name == "remotely-retry"]) == 1
    alive.set()
    assert [future.result(10) for future in futures] == sent == list(range(3000))
    assert len(threads) == 1


def test_one_actor_that_is_long_in_coming_does_not_hold_up_another() -> None:
    alive = threading.Event()

    def when_alive(future: CallFuture[Any]) -> None:
        alive.wait()
        future.set_result(1)

    slow = RetriedFuture("slow", object(), when_alive, 1)
    quick = RetriedFuture("quick", object(), lambda f: f.set_result(2), 1)
    for future in (slow, quick):
        future.lose(ActorDied("x"))
    assert quick.result(10) == 2
    alive.set()
    assert slow.result(10) == 1


def test_a_lost_call_that_is_settled_while_it_stands_in_line_holds_up_none_behind_it() -> None:
    actor = object()
    may_go = threading.Event()

    def again(future: CallFuture[Any]) -> None:
        may_go.wait(10)
        future.set_result(future.what)

    first, second, third = (RetriedFuture(what, actor, again, 1) for what in "abc")
    for future in (first, second, third):
        future.lose(ActorDied("died", may_have_run=True))
    second.settle("settled", None)
    may_go.set()
    assert [future.result(10) for future in (first, second, third)] == ["a", "settled", "c"]
