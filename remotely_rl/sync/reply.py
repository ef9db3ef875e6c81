"""What a rule answers to a push.

counted     the contribution moves the parameters, now or at the next step, and counts
            towards that step
weak        it moves them, but does not count
dropped     it is discarded
waits       the client does nothing until a later reply releases it
"""

from enum import Enum
from typing import NamedTuple

from torch import Tensor


class Accepted(Enum):
    """What becomes of a contribution; see the module's table."""

    COUNTED = "counted"
    WEAK = "weak"
    DROPPED = "dropped"


class Release(NamedTuple):
    """A client that waited and goes on: with these parameters, or with its own if None."""

    client: int
    parameters: Tensor | None


class Reply(NamedTuple):
    """The answer to a push, for the client that pushed and for those that it releases.

    `parameters` are to be installed; with None the client goes on with its own.  `version` is the
    version of `parameters`; a client that keeps its parameters keeps their version too.
    `deviation` is for the client's gate: see `gates.py`.
    """

    accepted: Accepted
    version: int
    staleness: int
    parameters: Tensor | None = None
    waits: bool = False
    released: tuple[Release, ...] = ()
    deviation: float = 1.0
