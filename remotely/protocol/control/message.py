"""The base of all control messages, and the messages that clients and workers share."""

import msgspec

from remotely.protocol.numbers import Moment


class ControlMessage(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A message.  Its tag, the name of the class, tells the members of a union apart."""


class Beat(ControlMessage, frozen=True):
    """`asked`: when, on the sender's own clock; not zero if an answer is wanted."""

    asked: Moment = 0.0


class Tick(ControlMessage, frozen=True):
    """Proves a route; see lease.py.  `asked`: of the beat that it answers, if it answers one."""

    asked: Moment = 0.0


class WhoAreYou(ControlMessage, frozen=True):
    """The master does not know this connection (one of them is new): introduce yourself."""


class Refused(ControlMessage, frozen=True):
    error: str
    why: str
