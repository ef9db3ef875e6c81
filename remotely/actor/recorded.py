"""The four ways in which a servant answers, with a record of each call, for a timeline."""

import time
from collections.abc import Sequence
from functools import partial

from remotely.actor.servant import SHOWN_AS, Call, RoutedReply, Servant, Unfinished
from remotely.objects.batching import Batching
from remotely.protocol.wire import Message
from remotely.transport.recording import CallRecorder

WAYS = ("answer", "answer_async", "answer_batch", "answer_batch_async")


class RecordedServant:
    """Each way does as its namesake of the servant, which it replaces."""

    def __init__(self, servant: Servant, recorder: CallRecorder) -> None:
        self._servant = servant
        self._note = recorder.note
        self.answer = recorder.around(partial(Servant.answer, servant), SHOWN_AS)

    async def answer_async(
        self, route: bytes, message: Message, unfinished: Unfinished | None = None
    ) -> RoutedReply:
        began = time.monotonic()
        try:
            return await Servant.answer_async(self._servant, route, message, unfinished)
        finally:
            name = SHOWN_AS.get(message.kind) or message.name
            self._note(route, message.call_id, name, began)

    def answer_batch(self, batching: Batching, calls: Sequence[Call]) -> list[RoutedReply]:
        began = time.monotonic()
        try:
            return Servant.answer_batch(self._servant, batching, calls)
        finally:
            self._note_batch(batching, calls, began)

    async def answer_batch_async(
        self, batching: Batching, calls: Sequence[Call]
    ) -> list[RoutedReply]:
        began = time.monotonic()
        try:
            return await Servant.answer_batch_async(self._servant, batching, calls)
        finally:
            self._note_batch(batching, calls, began)

    def _note_batch(self, batching: Batching, calls: Sequence[Call], began: float) -> None:
        for (route, message), _ in calls:
            self._note(route, message.call_id, batching.function.__name__, began)


def record(servant: Servant, recorder: CallRecorder) -> None:
    """Record the calls that begin from now on.  Any thread may call this."""
    recorded = RecordedServant(servant, recorder)
    for way in WAYS:
        setattr(servant, way, getattr(recorded, way))


def end(servant: Servant) -> None:
    """Record no further calls."""
    for way in WAYS:
        vars(servant).pop(way, None)
