"""The one way to a retry: only where it was asked for, so often, and never of an answer."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import ActorDied, CallTimeout, WorkerLost
from remotely.future import CallFuture, completed, failed
from remotely.idempotent import retried, retries_of


def calls(*outcomes: object) -> tuple[Any, list[int]]:
    """Return a function that makes one call after the other, and how many were made."""
    made = [0]

    def call() -> CallFuture[Any]:
        outcome = outcomes[made[0]]
        made[0] += 1
        return failed(outcome) if isinstance(outcome, BaseException) else completed(outcome)

    return call, made


@pytest.mark.parametrize("lost", [ActorDied("x"), WorkerLost("x")])
def test_a_lost_outcome_is_asked_for_again(lost: Exception) -> None:
    call, made = calls(lost, lost, 7)
    assert retried(call(), call, retries=2).result() == 7
    assert made == [3]


def test_after_the_last_retry_the_loss_is_told() -> None:
    call, made = calls(ActorDied("first"), ActorDied("second"))
    with pytest.raises(ActorDied, match="second"):
        retried(call(), call, retries=1).result()
    assert made == [2]


def test_what_the_method_raised_is_an_answer() -> None:
    call, made = calls(ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        retried(call(), call, retries=5).result()
    assert made == [1]


def test_a_timeout_is_no_loss_and_holds_for_all_tries_together() -> None:
    never: CallFuture[Any] = CallFuture("a call")
    made = retried(never, lambda: never, retries=3)
    with pytest.raises(CallTimeout):
        made.result(timeout=0.01)
    never.set_result(1)
    assert made.result() == 1


def test_who_is_to_be_told_is_told_of_the_last_try() -> None:
    first: CallFuture[Any] = CallFuture("a call")
    call, _ = calls(5)
    made = retried(first, call, retries=1)
    told: list[object] = []
    made.add_done_callback(lambda future: told.append(future.result()))
    first.set_exception(WorkerLost("x"))
    assert made.result(timeout=10) == 5
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
            os.kill(os.getpid(), signal.SIGSEGV)
        return lives

    def die_always(self) -> None:
        (self.folder / str(os.getpid())).touch()
        os._exit(3)


@pytest.mark.parametrize("way", ["call", "submit", "callback", "group"])
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
        assert future.result(timeout=30) == 1


def test_another_is_told_and_its_actor_is_made_anew(cluster: str, tmp_path: Path) -> None:
    frail = Frail(str(tmp_path))
    with pytest.raises(ActorDied, match="ended with 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ActorDied, match="ended with 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 2
