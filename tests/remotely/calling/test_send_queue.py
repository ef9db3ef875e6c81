"""Queued calls: their order, cancellation and errors, and that no actor blocks another."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from remotely.calling.actor import CalledActor
from remotely.calling.send_queue import QueuedCall, RetriedFuture, SendQueues
from remotely.errors import ActorDied, NotConnected, RemotelyError
from remotely.futures.awaitable import AwaitableFuture
from remotely.futures.future import CallFuture
from remotely.values.owned import NOTHING, Owned
from tests.clusters import wait_until

NO_LATER_THAN_S = 10.0


class Engine:
    def release(self, remote: object) -> None: ...


class Message:
    value: Owned = NOTHING


class Line:
    """Sends calls once their actor is connected, and answers each with its name."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.connected: dict[str, threading.Event] = {}
        self.alive: Callable[[], None] = lambda: None
        self.queues: SendQueues[Message] = SendQueues(self.send, lambda *_: None)

    def actor(self, name: str, connected: bool = True) -> CalledActor:
        self.connected[name] = threading.Event()
        if connected:
            self.connected[name].set()
        engine: Any = Engine()
        return CalledActor(engine, name, name, owned=True)

    def send(self, call: QueuedCall[Message]) -> None:
        assert self.connected[call.actor.name].wait(NO_LATER_THAN_S)
        self.alive()
        if call.take():
            self.sent.append(call.future.what)
            call.future.set_result(call.future.what)

    def call(self, actor: CalledActor, what: str, *needs: AwaitableFuture[Any]) -> CallFuture[Any]:
        future: CallFuture[Any] = CallFuture(what, actor)
        self.queues.add(actor, Message(), future, needs)
        return future

    def retried(self, actor: CalledActor, what: str) -> RetriedFuture:
        return RetriedFuture(what, actor, lambda f: self.queues.add(actor, Message(), f), 1)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    for connected in line.connected.values():
        connected.set()
    line.queues.close(NotConnected("the test is over"))


def results(*futures: Future[Any]) -> list[Any]:
    return [future.result(NO_LATER_THAN_S) for future in futures]


def test_calls_behind_one_that_waits_are_sent_in_order(line: Line) -> None:
    actor, need = line.actor("a"), AwaitableFuture[None]()
    futures = [line.call(actor, "1", need), line.call(actor, "2"), line.call(actor, "3")]
    assert not line.sent
    need.set_result(None)
    assert results(*futures) == ["1", "2", "3"] == line.sent


def test_an_empty_queue_is_deleted(line: Line) -> None:
    actor = line.actor("a")
    assert results(line.call(actor, "1")) == ["1"]
    wait_until(lambda: actor.queue is None, "the queue is deleted")


def test_twenty_unreachable_actors_do_not_block_another(line: Line) -> None:
    slow = [line.actor(f"slow {number}", connected=False) for number in range(20)]
    futures = [line.call(actor, "1") for actor in slow]
    assert results(line.call(line.actor("healthy"), "1")) == ["1"]
    assert not any(future.done() for future in futures)


def test_a_retried_call_is_sent_before_later_calls(line: Line) -> None:
    actor = line.actor("a", connected=False)
    first, second = line.retried(actor, "first"), line.retried(actor, "second")
    third = line.call(actor, "third")
    for future in (second, first):  # in any order
        future.lose(ActorDied("it was sent before"))
    line.connected["a"].set()
    assert results(first, second, third) == ["first", "second", "third"] == line.sent


@pytest.mark.parametrize("may_have_run", [True, False])
def test_cancelling_a_retry_gives_the_error_of_an_attempt_that_may_have_run(
    line: Line, may_have_run: bool
) -> None:
    actor = line.actor("a", connected=False)
    call = line.retried(actor, "call")
    call.lose(ActorDied("an attempt was lost", may_have_run=may_have_run))
    assert call.cancel() == call.cancelled() == (not may_have_run)
    if may_have_run:
        error = call.exception(0)
        assert isinstance(error, ActorDied)
        assert error.may_have_run
    later = line.call(actor, "later")
    line.connected["a"].set()
    assert results(later) == ["later"] == line.sent


def test_thousands_of_lost_calls_are_resent_in_order(line: Line) -> None:
    actor = line.actor("a", connected=False)
    futures = [line.retried(actor, str(number)) for number in range(3_000)]
    for future in futures:
        future.lose(ActorDied("all at once"))
    line.connected["a"].set()
    assert results(*futures) == line.sent == [str(number) for number in range(3_000)]


def cancelled(future: CallFuture[Any]) -> None:
    assert future.cancel()


def settled(future: CallFuture[Any]) -> None:
    future.set_result("by another")


@pytest.mark.parametrize("done", [cancelled, settled])
@pytest.mark.parametrize("connected", [True, False])
def test_a_call_that_is_done_while_queued_is_not_sent_and_delays_no_other(
    line: Line, done: Callable[[CallFuture[Any]], None], connected: bool
) -> None:
    """It waits for a need, or, on the sending thread, for a connection."""
    actor, need = line.actor("a", connected), AwaitableFuture[None]()
    first = line.call(actor, "1", *([need] if connected else []))
    second = line.call(actor, "2")
    done(first)
    line.connected["a"].set()
    need.set_result(None)
    assert results(second) == ["2"] == line.sent


def test_cancelled_calls_are_freed_behind_one_that_waits(line: Line) -> None:
    actor = line.actor("a")
    _waiting = line.call(actor, "1", AwaitableFuture[None]())
    kept = []
    for number in range(100):
        future = line.call(actor, str(number))
        assert future.cancel()
        kept.append(weakref.ref(future))
    del future
    gc.collect()
    assert sum(one() is not None for one in kept) < 20


def test_a_call_that_was_given_back_is_sent_before_later_calls(line: Line) -> None:
    actor = line.actor("a", connected=False)
    send, broken = line.send, [True]

    def give_back_once(call: QueuedCall[Message]) -> None:
        if broken and call.take():
            broken.clear()
            call.give_back()
            call.give_back()  # a second time is harmless
        else:
            send(call)

    line.queues = SendQueues(give_back_once, lambda *_: None)
    futures = [line.call(actor, "1"), line.call(actor, "2")]
    line.connected["a"].set()
    assert results(*futures) == ["1", "2"] == line.sent


def test_a_call_that_cannot_be_sent_gets_the_error_and_the_next_one_is_sent(line: Line) -> None:
    actor = line.actor("a")
    send = line.send

    def fail_once(call: QueuedCall[Message]) -> None:
        if call.future.what == "1":
            raise NotConnected("on purpose")
        send(call)

    line.queues = SendQueues(fail_once, lambda *_: None)
    first, second = line.call(actor, "1"), line.call(actor, "2")
    assert isinstance(first.exception(NO_LATER_THAN_S), NotConnected)
    assert results(second) == ["2"]


def test_closing_the_queues_fails_queued_and_later_calls(line: Line) -> None:
    actor = line.actor("a")
    waiting = line.call(actor, "1", AwaitableFuture[None]())
    line.queues.close(NotConnected("shut down"))
    for future in (waiting, line.call(actor, "2")):
        assert isinstance(future.exception(NO_LATER_THAN_S), NotConnected)


def test_a_wait_that_could_never_end_raises_an_error(line: Line) -> None:
    def refuse(actor: CalledActor, future: CallFuture[Any], has_needs: bool) -> None:
        assert has_needs
        raise RemotelyError(f"{future.what} of {actor.name} is received on this thread")

    line.queues = SendQueues(line.send, refuse)
    future = line.call(line.actor("a"), "1", AwaitableFuture[None]())
    with pytest.raises(RemotelyError, match="1 of a is received"):
        future.result()


@pytest.mark.parametrize("ends_first", [True, False])
def test_the_end_of_an_actor_fails_calls_that_wait_for_a_future(
    line: Line, ends_first: bool
) -> None:
    actor, need = line.actor("a"), AwaitableFuture[None]()

    def dies() -> None:
        actor.end_with(lambda may: ActorDied("it has ended", may_have_run=may))

    line.alive = actor.check_alive
    if ends_first:
        dies()
    futures = [line.call(actor, "1", need), line.call(actor, "2"), line.call(actor, "3", need)]
    if not ends_first:
        dies()
    for future in futures:
        error = future.exception(NO_LATER_THAN_S)
        assert isinstance(error, ActorDied)
        assert not error.may_have_run
    assert not need.done()
