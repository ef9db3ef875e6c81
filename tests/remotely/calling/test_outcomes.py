"""Whatever ends a call says whether any of its attempts may have run."""

import pickle
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from remotely.calling.actor import CalledActor
from remotely.calling.send_queue import QueuedCall, RetriedFuture, SendQueues
from remotely.errors import (
    ActorDied,
    CallTimeout,
    MasterLost,
    NoResources,
    NotAllowed,
    NotConnected,
    NotPicklable,
    RemotelyError,
    TooLarge,
    VersionMismatch,
    WorkerLost,
    doubt,
    in_doubt,
    not_run,
)
from remotely.futures.future import CallFuture
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec, raised_error
from remotely.values.owned import NOTHING

LOSSES = [ActorDied, WorkerLost]
ERRORS = [
    *LOSSES,
    CallTimeout,
    MasterLost,
    NoResources,
    NotAllowed,
    NotConnected,
    NotPicklable,
    RemotelyError,
    TooLarge,
    VersionMismatch,
]


def certain(kind: type[RemotelyError]) -> RemotelyError:
    """Return an error that says that the call did not run."""
    text = f"why{doubt(False)}"
    if kind in LOSSES:
        return kind(text, may_have_run=False)  # type: ignore[call-arg]
    return CallTimeout(text, still_running=False) if kind is CallTimeout else kind(text)


def reply(kind: Kind, value: object) -> wire.Message:
    if kind is Kind.RAISED:
        assert isinstance(value, BaseException)
        payload, text = raised_error.pack(value, "In an actor:", frozenset())
        return wire.Message(kind, 1, "", payload, (memoryview(text),))
    return wire.Message(kind, 1, "", codec.encode(value, in_band=True).payload, ())


def by_reply(kind: Kind, value: object) -> Callable[[CallFuture[Any]], object]:
    return lambda future: future.settle_by(reply(kind, value), lambda name, actor: None)


@pytest.mark.parametrize("cls", [CallFuture, RetriedFuture])
@pytest.mark.parametrize("kind", ERRORS)
@hypothesis.given(attempts=st.lists(st.booleans(), max_size=4), last=st.booleans())
@hypothesis.settings(max_examples=20)
def test_each_error_after_any_attempts_carries_their_doubt(
    cls: type[CallFuture[Any]],
    kind: type[RemotelyError],
    attempts: list[bool],
    last: bool,
) -> None:
    shared = certain(kind)
    ways: list[Callable[[CallFuture[Any]], object]] = [
        lambda f: f.lose(shared),
        lambda f: f.settle(None, shared),
    ]
    for way in ways:
        future = after(attempts if cls is RetriedFuture else [])
        if last:  # the attempt that is under way; its connection ends
            future.may_have_run = True
        way(future)
        error = future.exception(timeout=0)
        assert type(error) is kind
        assert error.may_have_run == ((cls is RetriedFuture and any(attempts)) or last)
        assert str(error) == f"why{doubt(error.may_have_run)}"
        assert not shared.may_have_run  # other calls end with it too


def after(attempts: list[bool]) -> CallFuture[Any]:
    """Return the future of a call of which these attempts are lost; whether each may have run."""
    future = RetriedFuture("a call", None, lambda _: None, len(attempts))
    for number, may_have_run in enumerate(attempts):
        future.lose(LOSSES[number % 2](f"attempt {number}", may_have_run=may_have_run))
        assert not future.done()
    return future


def test_a_value_is_an_outcome_whatever_became_of_earlier_attempts() -> None:
    future = after([True])
    by_reply(Kind.RESULT, 7)(future)
    assert future.result() == 7


def test_an_error_of_the_method_says_nothing_of_earlier_attempts() -> None:
    future = after([True])
    by_reply(Kind.RAISED, ValueError("mine"))(future)
    error = future.exception()
    assert isinstance(error, ValueError)
    assert not hasattr(error, "may_have_run")


def test_a_refusal_by_the_actor_carries_the_doubt() -> None:
    future = after([True])
    by_reply(Kind.RAISED, NotAllowed("the key was revoked"))(future)
    assert isinstance(error := future.exception(), NotAllowed)
    assert error.may_have_run


@pytest.mark.parametrize("may_have_run", [True, False])
def test_a_call_that_may_have_run_is_not_cancelled_but_lost(may_have_run: bool) -> None:
    future = after([may_have_run])
    future.settle_cancelled()
    assert future.cancelled() is not may_have_run
    if may_have_run:
        assert isinstance(error := future.exception(), ActorDied)
        assert error.may_have_run


def test_the_doubt_is_kept_in_a_pickle_with_its_note() -> None:
    for kind in ERRORS:
        error = pickle.loads(pickle.dumps(in_doubt(certain(kind))))
        assert error.may_have_run
        assert error.__notes__ == ["An attempt of this call was sent, and may have run."]


def test_the_error_of_a_call_that_may_have_run_is_shared_with_one_that_has_not() -> None:
    for kind in ERRORS:
        shared = in_doubt(certain(kind))
        error: Any = not_run(shared)
        assert (type(error), error.may_have_run, error.__notes__) == (kind, False, [])
        assert str(error) == f"why{doubt(False)}"
        assert shared.may_have_run


class Engine:
    def release(self, remote: object) -> None: ...


def test_a_queue_that_is_closed_carries_the_doubt_of_the_calls_in_it() -> None:
    def send(call: QueuedCall[Any]) -> None:
        raise AssertionError("it waits for another call")

    queues: SendQueues[Any] = SendQueues(send, lambda actor, future, has_needs: None)
    engine: Any = Engine()
    actor = CalledActor(engine, "id", "a", owned=True)
    calls = [after([True]), after([False])]
    for call in calls:
        queues.add(actor, NOTHING, call, [CallFuture("never done")])
    queues.close(NotConnected("it is closed"))
    errors = [call.exception() for call in calls]
    assert [getattr(error, "may_have_run", None) for error in errors] == [True, False]
