"""Bounded types for the numbers in messages.

msgpack can carry values that no honest peer sends: a NaN, an infinity, a negative count, more than
any machine has.  Decoding fails for these, so nothing computes with them.
"""

from typing import Annotated

import msgspec

LONGEST_S = 1e9  # 30 years; stands for a wait without a limit
MOST = 1 << 62
Amount = Annotated[int, msgspec.Meta(ge=0, le=MOST)]  # bytes, calls, tickets, lives
Cores = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
MOST_GPUS = 4096  # of one machine
MOST_OTHERS = 100  # custom resources of one machine or actor
Gpus = Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS)]  # the index of one on its machine
Pid = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # a time of some clock
Percent = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # a second
Offset = Annotated[int, msgspec.Meta(ge=-1, le=MOST)]  # in a file; -1: near its end
# Of an actor; its worker uses it in file names.
Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]{1,64}\Z")]
MOST_FLIGHT_RECORD = 1 << 20
FlightRecord = Annotated[bytes, msgspec.Meta(max_length=MOST_FLIGHT_RECORD)]
Route = Annotated[bytes, msgspec.Meta(min_length=1, max_length=32)]  # of a connection
ROUTE_BYTES = 12  # of a client's connection to an actor
NAME_BYTES = 32
Name = Annotated[bytes, msgspec.Meta(min_length=NAME_BYTES, max_length=NAME_BYTES)]  # of a value
HISTORY_MINUTES = 60
History = Annotated[bytes, msgspec.Meta(max_length=HISTORY_MINUTES)]  # percentages, by minute
Balance = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)]  # negative if overcommitted
