"""The server spans of a timeline: a servant's four ways to answer are replaced by others."""

import time
from collections.abc import Iterable, Sequence
from functools import partial

from remotely.actor.servant import SHOWN_AS, Call, RoutedReply, Servant, Unfinished
from remotely.objects.batching import Batching
from remotely.protocol.wire import Message
from remotely.transport.spans import ServerSpanWriter


def begin(servant: Servant, writer: ServerSpanWriter) -> None:
    """Write a span of each call that begins from now on.  Any thread may call this."""
    note = writer.note

    async def answer_async(
        route: bytes, message: Message, unfinished: Unfinished | None = None
    ) -> RoutedReply:
        began = time.monotonic()
        try:
            return await Servant.answer_async(servant, route, message, unfinished)
        finally:
            note(route, message.call_id, SHOWN_AS.get(message.kind) or message.name, began)

    def note_batch(batching: Batching, calls: Iterable[Call], began: float) -> None:
        for (route, message), _ in calls:
            note(route, message.call_id, batching.function.__name__, began)

    def answer_batch(batching: Batching, calls: Sequence[Call]) -> list[RoutedReply]:
        began = time.monotonic()
        try:
            return Servant.answer_batch(servant, batching, calls)
        finally:
            note_batch(batching, calls, began)

    async def answer_batch_async(batching: Batching, calls: Sequence[Call]) -> list[RoutedReply]:
        began = time.monotonic()
        try:
            return await Servant.answer_batch_async(servant, batching, calls)
        finally:
            note_batch(batching, calls, began)

    vars(servant).update(
        answer=writer.around(partial(Servant.answer, servant), SHOWN_AS),
        answer_async=answer_async,
        answer_batch=answer_batch,
        answer_batch_async=answer_batch_async,
    )


def end(servant: Servant) -> None:
    """Write no further spans."""
    for way in ("answer", "answer_async", "answer_batch", "answer_batch_async"):
        vars(servant).pop(way, None)
