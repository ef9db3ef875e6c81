"""The records of a timeline: what they hold, and how they are packed.  Pure.

A process that serves calls records each of them (SERVED), one that makes calls does so too (MADE).
Both name a call by its route, which is that of the connection, and its number on it: so the two
records of a call are found.  Times are those of the monotonic clock of the machine.
"""

import struct
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from remotely.protocol.numbers import ROUTE_BYTES

LONGEST_RECORDING_S = 300.0
MOST_CALLS = 50_000  # of one process in one recording; later ones are only counted
MOST_OF_WORKER = 400_000  # of all actors of a worker
LEAST_CALLS = 1000  # of an actor, however many there are
NAMES = 64  # methods that are told apart; the last stands for all others
# The route, the number of the method's name, the call, when it began and ended, and the bytes that
# the actor has received and sent until then.
SERVED = struct.Struct(f"<{ROUTE_BYTES}sHxxQddQQ")
MADE = struct.Struct("<Qdd")  # the call, when it was sent, and when its reply arrived; 0: not yet

RecordedS = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_RECORDING_S)]
Served = Annotated[bytes, msgspec.Meta(max_length=SERVED.size * MOST_CALLS)]
Made = Annotated[bytes, msgspec.Meta(max_length=MADE.size * MOST_CALLS)]
Offset_s = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class ServedCall(NamedTuple):
    """A call, as the actor that ran it saw it."""

    route: bytes
    name: int
    call: int
    began: float
    ended: float
    received: int
    sent: int


class MadeCall(NamedTuple):
    """A call, as the process that made it saw it."""

    call: int
    sent: float
    answered: float


def served_in(data: bytes) -> Iterator[ServedCall]:
    """Yield the calls; those that were not written whole are left out."""
    whole = len(data) - len(data) % SERVED.size
    for fields in SERVED.iter_unpack(data[:whole]):
        each = ServedCall(*fields)
        if 0 < each.began <= each.ended < 1e12:  # not NaN either
            yield each


def made_in(data: bytes) -> Iterator[MadeCall]:
    """Yield the calls that a process has made on one connection."""
    whole = len(data) - len(data) % MADE.size
    for fields in MADE.iter_unpack(data[:whole]):
        each = MadeCall(*fields)
        if 0 < each.sent < 1e12 and (each.answered == 0 or each.sent <= each.answered < 1e12):
            yield each
