"""The begin of a call, after which it cannot be cancelled: on a thread, in a batch, on a loop.

And its reply, whatever is raised meanwhile.
"""

import asyncio
import mmap
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from remotely.actor.dispatch import Cancellations, Dispatcher
from remotely.actor.servant import RoutedReply, raised_for_all
from remotely.objects.batching import Batching
from remotely.protocol import wire
from remotely.protocol.wire import Kind, Message
from remotely.transport import activity

ROUTE = b"r-our-client"

Call = tuple[tuple[bytes, Message], Any]


class Servant:
    """Returns as reply which call ran, or was cancelled."""

    def __init__(self, batched: bool = False, awaited: bool = False, concurrency: int = 1) -> None:
        self.is_made, self.is_async, self.failed = True, awaited, False
        self.concurrency = concurrency
        self.batched = {"method": Batching(print, 2, 3600.0, stack=False)} if batched else {}
        self.runs: Callable[[int], object] = lambda call_id: None
        self.ends = (SystemExit,)
        self.elsewhere: dict[int, threading.Event] = {}  # by call; set when its value may arrive

    def is_elsewhere(self, route: bytes, message: Message) -> bool:
        return message.call_id in self.elsewhere

    def fetch(self, route: bytes, message: Message) -> None:
        assert self.elsewhere[message.call_id].wait(40)

    def is_coroutine(self, message: Message) -> bool:
        return self.is_async and message.kind is not Kind.END

    def arguments(self, route: bytes, message: Message) -> Any:
        return (), {}

    def cancelled(self, route: bytes, message: Message, is_decoded: bool = False) -> str:
        return f"{message.call_id} cancelled"

    def answer(self, route: bytes, message: Message) -> str:
        self.runs(message.call_id)
        return f"{message.call_id} ran"

    async def answer_async(self, route: bytes, message: Message) -> str:
        return self.answer(route, message)

    def answer_error(
        self, calls: Sequence[tuple[bytes, Message]], error: BaseException
    ) -> list[RoutedReply]:
        return raised_for_all(calls, error)

    def answer_batch(self, batching: Batching, calls: Sequence[Call]) -> list[str]:
        return [self.answer(route, message) for (route, message), _ in calls]


class Stage:
    """A dispatcher without a socket; `replies` has what it sends."""

    def __init__(self, servant: Servant) -> None:
        self.replies: list[Any] = []
        self.page = mmap.mmap(-1, activity.SIZE)
        self.cancellations = Cancellations(
            self.page, lambda reply: True, lambda after_s, action: None
        )
        send = self.replies.append
        line = SimpleNamespace(send=send, send_soon=send, send_beside=send, wake=lambda: None)
        self._dispatcher = Dispatcher(
            cast(Any, servant), cast(Any, line), self.cancellations, wait_for_lease=lambda: None
        )

    def handle(self, kind: Kind, call_id: int, route: bytes = ROUTE) -> None:
        self._dispatcher.handle(route, Message(kind, call_id, "method", b"", ()))

    def run_fetching(self, *steps: Callable[[], object]) -> None:
        """Run these steps on an event loop, then what they have begun, to its end."""

        async def run() -> None:
            self._dispatcher.loop = asyncio.get_running_loop()
            for step in steps:
                step()
            while not self._dispatcher.is_over():
                await asyncio.sleep(0.001)
            await self._dispatcher.before_end()

        asyncio.run(run())

    def run(self, *messages: tuple[Kind, int], meanwhile: Callable[[], object] = str) -> None:
        """Handle messages, then call `meanwhile`, then let everything run."""

        async def run() -> None:
            self._dispatcher.run_early()
            for kind, call_id in (*messages, (Kind.END, 1000)):
                if kind is Kind.END:
                    meanwhile()
                self.handle(kind, call_id)
            await self._dispatcher.before_end()

        asyncio.run(run())
        self._dispatcher.end_calls()


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("kind", [Kind.CALL, Kind.GET])
@pytest.mark.parametrize(("batched", "awaited"), [(False, False), (True, False), (False, True)])
def test_a_marked_call_does_not_begin_and_the_next_one_does(
    concurrency: int, kind: Kind, batched: bool, awaited: bool
) -> None:
    stage = Stage(Servant(batched, awaited, concurrency))
    stage.cancellations.marks.add((ROUTE, 7))
    stage.run((kind, 7), (kind, 8))
    assert sorted(stage.replies) == ["7 cancelled", "8 ran"]
    assert activity.begun(stage.page) == ({ROUTE: 8}, True)
    assert not stage.cancellations.marks


def test_a_call_that_waits_in_a_batch_can_be_cancelled() -> None:
    stage = Stage(Servant(batched=True))

    def cancel() -> None:
        assert activity.begun(stage.page) == ({}, True)
        assert stage.cancellations.cancel(ROUTE, 7)

    stage.run((Kind.CALL, 7), meanwhile=cancel)
    assert stage.replies == ["7 cancelled"]


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize(("batched", "awaited"), [(False, False), (True, False), (False, True)])
def test_a_call_is_recorded_before_it_runs(concurrency: int, batched: bool, awaited: bool) -> None:
    servant = Servant(batched, awaited, concurrency)
    stage = Stage(servant)
    last: dict[int, int] = {}  # the last call on record when each call ran
    servant.runs = lambda call_id: last.update({call_id: activity.begun(stage.page)[0][ROUTE]})
    stage.run((Kind.CALL, 7), (Kind.CALL, 8))
    assert last.keys() == {7, 8}
    assert all(last[call_id] >= call_id for call_id in last)


def test_a_message_other_than_a_call_does_not_record_earlier_calls_as_begun() -> None:
    stage = Stage(Servant(batched=True))
    stage.run(
        (Kind.CALL, 7),
        (Kind.SOURCES, 8),
        meanwhile=lambda: stage.replies.append(activity.begun(stage.page)),
    )
    assert stage.replies == ["8 ran", ({}, True), "7 ran"]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_call_that_arrives_before_the_object_runs_once_there_is_one_and_its_loop(
    awaited: bool,
) -> None:
    servant = Servant()
    servant.is_made = False
    stage = Stage(servant)

    def make(call_id: int) -> None:
        if call_id == 6:
            servant.is_made, servant.is_async = True, awaited

    servant.runs = make
    stage.handle(Kind.CALL, 5)
    stage.handle(Kind.INIT, 6)
    stage.run((Kind.CALL, 7))
    assert stage.replies == ["6 ran", "5 ran", "7 ran"]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("where", ["is_coroutine", "arguments", "answer", "answer_batch"])
@pytest.mark.parametrize(("batched", "awaited"), [(False, False), (True, False), (False, True)])
def test_whatever_is_raised_is_a_reply_and_the_next_call_runs(
    batched: bool, awaited: bool, where: str, error: type[BaseException]
) -> None:
    servant = Servant(batched, awaited)
    stage = Stage(servant)
    works = getattr(servant, where)

    def fails(*args: Any) -> Any:
        setattr(servant, where, works)
        raise error

    setattr(servant, where, fails)
    stage.run((Kind.CALL, 7), (Kind.CALL, 8))
    replied = {
        int(reply.partition(" ")[0]) if isinstance(reply, str) else wire.call_id_of(reply.frames[0])
        for reply in stage.replies
    }
    assert replied >= {7, 8}


# --- values that are elsewhere, for a class with async methods ------------------------------------

OTHER = b"r-another-client"


def test_the_calls_of_a_client_wait_behind_one_whose_value_is_fetched_and_no_others_do() -> None:
    servant = Servant(awaited=True)
    stage = Stage(servant)
    servant.elsewhere = {number: threading.Event() for number in (1, 3)}

    def call(call_id: int, route: bytes = ROUTE) -> Callable[[], object]:
        return lambda: stage.handle(Kind.CALL, call_id, route)

    def see_others() -> None:
        assert stage.replies == ["9 ran", "5 ran"]
        for here in servant.elsewhere.values():
            here.set()

    stage.run_fetching(
        *(call(1), call(2), call(3), call(4)),
        *(call(9, OTHER), lambda: stage.handle(Kind.SOURCES, 5), see_others),
        lambda: stage.handle(Kind.END, 6),
    )
    assert stage.replies[2:] == ["1 ran", "2 ran", "3 ran", "4 ran"]


def test_the_end_waits_for_values_that_any_client_needs_and_later_calls_do_not_run() -> None:
    servant = Servant(awaited=True)
    stage = Stage(servant)
    servant.elsewhere = {number: threading.Event() for number in (1, 2)}
    stage.run_fetching(
        lambda: stage.handle(Kind.CALL, 1),
        lambda: stage.handle(Kind.CALL, 2, OTHER),
        lambda: stage.handle(Kind.END, 3, b"r-a-third-client"),
        lambda: stage.handle(Kind.CALL, 4),
        *(here.set for here in servant.elsewhere.values()),
    )
    assert sorted(stage.replies) == ["1 ran", "2 ran"]


def test_a_call_is_cancelled_while_its_value_is_fetched() -> None:
    servant = Servant(awaited=True)
    stage = Stage(servant)
    servant.elsewhere = {1: threading.Event()}

    def cancel() -> None:
        assert stage.cancellations.cancel(ROUTE, 1)
        servant.elsewhere[1].set()

    stage.run_fetching(
        lambda: stage.handle(Kind.CALL, 1), cancel, lambda: stage.handle(Kind.END, 2)
    )
    assert stage.replies == ["1 cancelled"]
