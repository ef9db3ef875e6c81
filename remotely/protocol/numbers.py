"""The numbers that messages carry, each within its bounds.

msgpack can carry what no honest peer says: a NaN, an infinity, fewer than none, more than any
machine has.  The schema refuses these, so nothing ever computes with them.
"""

from typing import Annotated

import msgspec

LONGEST_S = 1e9  # 30 years; who would wait for ever asks for this
MOST = 1 << 62
Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST)]  # bytes, calls, tickets, lives
Cores = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
MOST_GPUS = 4096  # of one machine
MOST_OTHERS = 100  # resources of the user's, of one machine or actor
Gpus = Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS)]  # which of a machine
Pid = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # of some clock
Percent = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Offset = Annotated[int, msgspec.Meta(ge=-1, le=MOST)]  # in a file; -1: near its end
# Of an actor: its worker names files by it.
Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]{1,64}\Z")]
MOST_FLIGHT_RECORD = 1 << 20
FlightRecord = Annotated[bytes, msgspec.Meta(max_length=MOST_FLIGHT_RECORD)]
Route = Annotated[bytes, msgspec.Meta(min_length=1, max_length=32)]  # of a connection
ROUTE_BYTES = 12  # of one from a client to an actor
NAME_BYTES = 32
Name = Annotated[bytes, msgspec.Meta(min_length=NAME_BYTES, max_length=NAME_BYTES)]  # of a value
Balance = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)]  # below zero where too much went
