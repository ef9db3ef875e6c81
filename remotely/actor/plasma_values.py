"""The values of an actor on Ray: in its messages, or in entries that Ray has fetched."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any

from ray.exceptions import RayError

from remotely.actor.servant import Handler, RoutedReply
from remotely.engines.ray.actor import end_error
from remotely.engines.ray.host import LOST, NOT_RUN, Entries, received, writable
from remotely.errors import ActorDied, NotPicklable
from remotely.futures.future import CancelledPlaceholder, SelfPlaceholder, StreamToken
from remotely.protocol import wire
from remotely.protocol.wire import Kind, Message
from remotely.values import codec, in_transit, raised_error, references
from remotely.values.payload import Unpacked

_NO_VALUES = {
    StreamToken: "a stream, which only its caller can read",
    SelfPlaceholder: "the actor itself: pass its handle",
}


class PlasmaValues:
    handlers: Mapping[Kind, Handler] = {}

    def __init__(self) -> None:
        self._entries: dict[tuple[bytes, int], tuple[Entries, Sequence[str]]] = {}

    def refer(self, route: bytes, call_id: int, entries: Entries, names: Sequence[str]) -> None:
        """Keep the entries to which the arguments of a call refer, until it is decoded."""
        self._entries[route, call_id] = entries, names

    def unpack(self, route: bytes, message: Message) -> Unpacked:
        """Return a pickle and copies of its buffers: those in Ray's store are shared."""
        return message.payload, [writable(buffer) for buffer in message.buffers]

    def decode(self, route: bytes, message: Message) -> Any:
        entries, names = self._entries.pop((route, message.call_id), ((), ()))
        values = [_value_of(entry, name) for entry, name in zip(entries, names, strict=True)]
        return references.arrive(values, *self.unpack(route, message))

    def is_elsewhere(self, route: bytes, message: Message) -> bool:
        return False  # Ray fetches arguments before it delivers a message

    def fetch(self, route: bytes, message: Message) -> None:
        """Nothing is elsewhere."""

    def decline(self, route: bytes, message: Message) -> None:
        self._entries.pop((route, message.call_id), None)

    def returned(self, route: bytes, message: Message, value: object) -> RoutedReply:
        what = f"the result of {message.name}" if message.name else "the result"
        encoded = codec.encode_result(value, what, time.monotonic())
        frames = wire.encode(Kind.RESULT, message.call_id, "", encoded.pieces, encoded.buffers)
        return RoutedReply(route, frames)

    def waiting(self, now: float) -> list[bytes]:
        return []  # Ray counts the references to a result

    def forget(self, route: bytes) -> None:
        """Nothing is kept for a client."""

    def tidy(self) -> None:
        in_transit.tidy(time.monotonic())


def _value_of(entry: Any, name: str) -> Any:
    """Return the value of an argument that is the reply of another call."""
    error = _error_of(entry)
    if error is not None:
        raise references.of_argument(error, name)
    message = wire.decode(received(entry), "actor")
    if message.kind is Kind.RAISED:
        error = raised_error.unpack(message.payload, message.buffers[0])
        raise references.of_argument(error, name)
    value = codec.decode(message.payload, message.buffers)
    if type(value) is CancelledPlaceholder:
        raise references.of_argument(CancelledError("the call was cancelled"), name)
    if (why := _NO_VALUES.get(type(value))) is not None:
        raise references.of_argument(NotPicklable(f"the result of the call is {why}"), name)
    return value


def _error_of(entry: Any) -> BaseException | None:
    """Return the error of a call that has no reply."""
    if isinstance(entry, RayError):
        return end_error("the actor", None, entry)(True)
    if isinstance(entry, BaseException):
        return entry
    if isinstance(entry, bytes) and entry in (NOT_RUN, LOST):
        return ActorDied("the actor was closed", exit=0, may_have_run=entry == LOST)
    return None
