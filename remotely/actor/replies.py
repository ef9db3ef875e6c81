"""The reply to one message: its frames, the client it goes to, and the memory lent with it."""

import traceback
from typing import Any, NamedTuple

from remotely.api.current_actor import heading
from remotely.errors import RemotelyError
from remotely.protocol import wire
from remotely.protocol.wire import Kind, Message
from remotely.values import codec, source_finder
from remotely.values.arena import Loan


class RoutedReply(NamedTuple):
    """A reply, the route of the client that it goes to, and what is lent with it."""

    route: bytes
    frames: list[bytes | memoryview]
    loan: Loan | None = None
    is_small: bool = False  # a result that may share a message with others


def raised(route: bytes, message: Message, error: BaseException) -> RoutedReply:
    """Return the reply that reports an error, with its traceback as text."""
    note = source_finder.missing_here(error)
    if note:
        error.add_note(note)
    trace = traceback.format_exception(type(error), error, _users_part(error))
    text = heading() + "".join(trace)
    try:
        pieces = codec.encode(error, in_band=True).pieces
    except RemotelyError:
        pieces = ()
    told = text.encode(errors="replace")
    return RoutedReply(route, wire.encode(Kind.RAISED, message.call_id, "", pieces, [told]))


# The frames at the top of every traceback, which would tell the user nothing.
_OURS = frozenset(
    (
        "remotely.actor.servant",
        "remotely.actor.preparation",
        "remotely.actor.payloads",
        codec.__name__,
    )
)


def _users_part(error: BaseException) -> Any:
    """Return the traceback without our own frames at its top."""
    here, trace = error.__traceback__, error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OURS:
        trace = trace.tb_next
    return trace or here
