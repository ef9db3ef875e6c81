"""What the master says to clients and workers alike, and they to the master."""

from remotely.protocol.control.message import ControlMessage
from remotely.protocol.numbers import Moment


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
