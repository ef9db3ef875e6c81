"""The reply to one message: its frames, the client it goes to, and the memory lent with it."""

from typing import NamedTuple

from remotely.api.current_actor import heading
from remotely.protocol import wire
from remotely.protocol.wire import Kind, Message
from remotely.values import codec, raised_error
from remotely.values.arena import Loan


class RoutedReply(NamedTuple):
    """A reply, the route of the client that it goes to, and what is lent with it."""

    route: bytes
    frames: list[bytes | memoryview]
    loan: Loan | None = None
    is_small: bool = False  # a result that may share a message with others


def raised(route: bytes, message: Message, error: BaseException) -> RoutedReply:
    """Return the reply that reports an error, with its traceback as text."""
    payload, text = raised_error.pack(error, heading(), _OURS)
    pieces = [payload] if payload else ()
    return RoutedReply(route, wire.encode(Kind.RAISED, message.call_id, "", pieces, [text]))


# The frames at the top of every traceback, which would tell the user nothing.
_OURS = frozenset(
    (
        "remotely.actor.servant",
        "remotely.actor.preparation",
        "remotely.actor.payloads",
        "remotely.pools.runner",
        codec.__name__,
    )
)
