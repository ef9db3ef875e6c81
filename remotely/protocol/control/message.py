"""The base class of control messages, who sends which, and the messages that many send."""

from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec

from remotely.protocol.numbers import Moment

# Who talks to whom.
Way = Literal[
    "client > master",
    "worker > master",
    "viewer > master",  # a dashboard: read-only
    "master > client",
    "master > worker",
    "master > viewer",
    "client > actor",
    "worker > actor",
    "actor > worker",
    "worker > zygote",
    "zygote > worker",
    "client > store",
    "worker > store",
    "actor > store",
    "store > client",
    "store > worker",
    "store > actor",
]


class ControlMessage(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A message.  Its tag is the name of the class."""


M = TypeVar("M", bound=ControlMessage)

WAYS: dict[str, list[type[ControlMessage]]] = {}  # what may be sent each way


def sent(*ways: Way) -> Callable[[type[M]], type[M]]:
    """Mark a message with the ways that it may go."""

    def mark(message: type[M]) -> type[M]:
        for way in ways:
            WAYS.setdefault(way, []).append(message)
        return message

    return mark


@sent("client > master", "worker > master", "viewer > master")
class Beat(ControlMessage, frozen=True):
    """Renews a lease.  `asked`: the time on the sender's clock if it wants a Tick, else zero."""

    asked: Moment = 0.0


@sent("master > client", "master > worker", "master > viewer")
class Tick(ControlMessage, frozen=True):
    """Proves a route; see lease.py.  `asked`: of the Beat to which it replies, if any."""

    asked: Moment = 0.0


@sent("master > client", "master > worker", "master > viewer")
class WhoAreYou(ControlMessage, frozen=True):
    """Introduce yourself: the master does not know this connection."""


@sent("master > client", "master > worker", "master > viewer")
class Refused(ControlMessage, frozen=True):
    error: str
    why: str
