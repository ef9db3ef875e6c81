"""The base class of control messages, and the messages that clients and workers share."""

import msgspec

from remotely.protocol.numbers import Moment


class ControlMessage(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A message.  Its tag is the name of the class."""


class Beat(ControlMessage, frozen=True):
    """Renews a lease.  `asked`: the time on the sender's clock if it wants a Tick, else zero."""

    asked: Moment = 0.0


class Tick(ControlMessage, frozen=True):
    """Proves a route; see lease.py.  `asked`: of the Beat to which it replies, if any."""

    asked: Moment = 0.0


class WhoAreYou(ControlMessage, frozen=True):
    """Introduce yourself: the master does not know this connection."""


class Refused(ControlMessage, frozen=True):
    error: str
    why: str
