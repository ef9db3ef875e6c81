"""What a call is before it begins: cancelled or run, wherever it is to run."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from remotely.actor.cancellations import Cancellations
from remotely.actor.dispatch import Dispatcher
from remotely.protocol.wire import Kind, Message

ROUTE = b"route"


class Servant:
    """Notes what it is asked to do."""

    def __init__(self, batched: bool, awaited: bool) -> None:
        self.is_made, self.is_async, self.failed, self.concurrency = True, awaited, False, 1
        self.batched = {"method": None} if batched else {}
        self.did: list[str] = []

    def is_coroutine(self, message: Message) -> bool:
        return self.is_async

    def cancelled(self, route: bytes, message: Message) -> str:
        return "cancelled"

    def answer(self, route: bytes, message: Message) -> str:
        return "ran"


class Threads:
    """Runs at once what it is given."""

    def run(self, work: Any, *args: Any) -> None:
        work(*args)


@pytest.mark.parametrize("has_threads", [False, True])
@pytest.mark.parametrize("kind", [Kind.CALL, Kind.GET, Kind.SOURCES])
@pytest.mark.parametrize(("batched", "awaited"), [(False, False), (True, False), (False, True)])
def test_a_marked_call_does_not_begin_and_the_next_one_does(
    has_threads: bool, kind: Kind, batched: bool, awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    servant = Servant(batched, awaited)
    said: list[Any] = []
    say = said.append
    socket = SimpleNamespace(send=say, send_soon=say, send_beside=say, wake=lambda: None)
    cancellations = Cancellations(lambda reply: True, lambda after_s, action: None)
    dispatcher = Dispatcher(
        cast(Any, servant), cast(Any, socket), cancellations, wait_for_lease=lambda: None
    )
    if has_threads:
        dispatcher._threads = cast(Any, Threads())

    def begins(*_: Any) -> None:
        said.append("ran")

    monkeypatch.setattr(dispatcher, "_gather", begins)
    monkeypatch.setattr(dispatcher, "_answer_async", begins)
    monkeypatch.setattr(dispatcher, "_start", lambda call: None)
    cancellations.marks.add((ROUTE, 7))
    for call_id in (7, 8):
        dispatcher.handle(ROUTE, Message(kind, call_id, "method", b"", ()))
    assert said == ["cancelled", "ran"]
    assert cancellations.begun == {ROUTE: 8}
    assert not cancellations.marks
