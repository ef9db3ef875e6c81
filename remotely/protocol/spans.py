"""The spans of a timeline: what they hold, and how they are packed.  Pure.

Each call has two: that of the process which serves it, and that of the process which makes it.
Both name the call by its route, which is that of the connection, and its number on it, and so are
joined.  Times are those of the monotonic clock of the machine.
"""

import struct
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec

from remotely.protocol.numbers import ROUTE_BYTES

LONGEST_TIMELINE_S = 300.0
MOST_SPANS = 50_000  # of one process in one timeline; later ones are only counted
MOST_OF_WORKER = 400_000  # of all actors of a worker
LEAST_SPANS = 1000  # of an actor, however many there are
NAMES = 64  # methods that are told apart; the last stands for all others
# The route, the number of the method's name, the call, when it began and ended, and the bytes that
# the actor has received and sent until then.
SERVER_SPAN = struct.Struct(f"<{ROUTE_BYTES}sHxxQddQQ")
# The call, when it was sent, and when its reply arrived; 0: not yet.
CLIENT_SPAN = struct.Struct("<Qdd")

TimelineSeconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_TIMELINE_S)]
PackedServerSpans = Annotated[bytes, msgspec.Meta(max_length=SERVER_SPAN.size * MOST_SPANS)]
PackedClientSpans = Annotated[bytes, msgspec.Meta(max_length=CLIENT_SPAN.size * MOST_SPANS)]
Offset_s = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class ServerSpan(NamedTuple):
    """A call, as the actor that ran it saw it."""

    route: bytes
    name: int
    call: int
    began: float
    ended: float
    received: int
    sent: int


class ClientSpan(NamedTuple):
    """A call, as the process that made it saw it."""

    call: int
    sent: float
    answered: float


def server_spans(data: bytes) -> Iterator[ServerSpan]:
    """Yield the calls; those that were not written whole are left out."""
    whole = len(data) - len(data) % SERVER_SPAN.size
    for fields in SERVER_SPAN.iter_unpack(data[:whole]):
        each = ServerSpan(*fields)
        if 0 < each.began <= each.ended < 1e12:  # not NaN either
            yield each


def client_spans(data: bytes) -> Iterator[ClientSpan]:
    """Yield the calls that a process has made on one connection."""
    whole = len(data) - len(data) % CLIENT_SPAN.size
    for fields in CLIENT_SPAN.iter_unpack(data[:whole]):
        each = ClientSpan(*fields)
        if 0 < each.sent < 1e12 and (each.answered == 0 or each.sent <= each.answered < 1e12):
            yield each
