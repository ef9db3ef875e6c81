"""A call either begins or is cancelled, in any interleaving of the two threads."""

import mmap
from collections.abc import Callable
from typing import Any

import pytest

from remotely.actor import dispatch
from remotely.actor.dispatch import ANSWER_TRIES, Cancellations
from remotely.actor.servant import RoutedReply
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind
from remotely.transport import activity
from remotely.values import codec

ROUTE = b"r-our-client"


class Caller:
    """Receives answers, once it is connected."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bool]] = []
        self.connects_after = 0
        self.later: list[Callable[[], None]] = []
        self.cancellations = Cancellations(
            mmap.mmap(-1, activity.SIZE), self._take, lambda _, action: self.later.append(action)
        )

    def _take(self, reply: RoutedReply) -> bool:
        if self.connects_after:
            self.connects_after -= 1
            return False
        message = wire.decode(reply.frames, "actor")
        assert message.kind is Kind.RESULT
        self.answers.append((message.call_id, codec.decode(message.payload)))
        return True

    def cancel(self, call: int, route: bytes = ROUTE) -> bool:
        cancel = control.Cancel(actor="a", route=route, call=call, answer=1000 + call)
        self.cancellations.on_cancel(cancel)
        answered, never_runs = self.answers.pop()
        assert answered == 1000 + call
        return never_runs


@pytest.fixture
def caller() -> Caller:
    return Caller()


def test_a_call_that_has_not_begun_is_cancelled_and_does_not_begin(caller: Caller) -> None:
    assert caller.cancellations.begin(ROUTE, 1)
    assert caller.cancel(2)
    assert not caller.cancellations.begin(ROUTE, 2)
    assert caller.cancellations.begin(ROUTE, 3)
    assert not caller.cancellations.marks


def test_a_call_that_has_begun_is_not_cancelled_nor_is_an_earlier_one(caller: Caller) -> None:
    caller.cancellations.begin(ROUTE, 5)
    assert not caller.cancel(5)
    assert not caller.cancel(4)
    assert not caller.cancellations.marks


def test_call_ids_of_other_connections_are_independent(caller: Caller) -> None:
    caller.cancellations.begin(b"other", 9)
    assert caller.cancel(2)
    assert caller.cancellations.begin(b"other", 2)
    assert not caller.cancellations.begin(ROUTE, 2)


def test_a_late_begin_on_another_thread_does_not_hide_a_later_call(caller: Caller) -> None:
    caller.cancellations.begin(ROUTE, 6)
    caller.cancellations.begin(ROUTE, 5)
    assert not caller.cancel(6)


def test_a_call_that_begins_while_it_is_marked_either_runs_or_is_cancelled(caller: Caller) -> None:
    """The other thread takes its steps between the mark and the look at what has begun."""

    class Marks(set[Any]):
        """Begins the call right after it was marked."""

        looks_too = True

        def add(self, call: Any) -> None:
            super().add(call)
            caller.cancellations.begun.note(*call)
            if self.looks_too:
                assert caller.cancellations.remove_mark(*call)

    caller.cancellations.marks = marks = Marks()
    assert caller.cancel(1)  # the other thread saw the mark, and does not run it
    marks.looks_too = False
    assert not caller.cancel(2)  # it did not, and will not
    assert not caller.cancellations.remove_mark(ROUTE, 2)


def test_the_answer_is_retried_until_the_caller_is_connected(caller: Caller) -> None:
    caller.connects_after = 3
    caller.cancellations.on_cancel(control.Cancel(actor="a", route=ROUTE, call=1, answer=7))
    while caller.later:
        caller.later.pop()()
    assert caller.answers == [(7, True)]
    caller.connects_after = 10_000
    caller.cancellations.on_cancel(control.Cancel(actor="a", route=ROUTE, call=1, answer=8))
    tries = 1
    while caller.later:
        caller.later.pop()()
        tries += 1
    assert tries == ANSWER_TRIES
    assert caller.answers == [(7, True)]


def test_with_its_tables_full_it_never_cancels_a_call_that_has_begun(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MAX_MARKS", 2)
    monkeypatch.setattr(activity, "MAX_WITHOUT_SLOT", 2)
    routes = [b"r-%010d" % n for n in range(activity.SLOTS + 3)]
    for route in routes:
        caller.cancellations.begin(route, 5)
    assert not caller.cancel(5, routes[0])  # it has begun, although the record is dropped
    assert not caller.cancel(5, routes[2])
    caller.cancellations.begin(routes[0], 6)
    assert not caller.cancel(6, routes[0])
    assert [caller.cancel(call, routes[0]) for call in (7, 8, 9)] == [True, True, False]
