"""Staleness-scaled (SASGD): the older a contribution is, the less it moves.

    theta <- theta - (rate / s(tau)) g

Zhang, Gupta, Lian, Liu 2015, https://arxiv.org/abs/1511.05950.  The paper's s(tau) = tau says
nothing of tau = 0.  Two readings, `max1`: max(tau, 1), which leaves the rate as it is there,
and `plus1`: tau + 1, by which the simulator of the FASGD paper made its curves.

The papers descend plainly.  With another optimizer it is its step that is divided.
"""

from dataclasses import dataclass
from typing import Annotated

from remotely_rl.errors import SyncError
from remotely_rl.sync.rules.asynchronous import Asynchronous

READINGS = ("max1", "plus1")


def check_reading(reading: str, allowed: tuple[str, ...] = READINGS) -> None:
    """Raises SyncError if a rule does not know it."""
    if reading not in allowed:
        raise SyncError(f"at_zero must be {' or '.join(allowed)}, not {reading!r}")


def divisor(staleness: int, reading: str) -> int:
    """s(tau)."""
    return staleness + 1 if reading == "plus1" else max(staleness, 1)


@dataclass(eq=False)
class StalenessScaled(Asynchronous):
    """See the module's docstring."""

    at_zero: Annotated[str, "what staleness is divided by: max1 or plus1"] = "max1"

    def begin(self) -> None:
        check_reading(self.at_zero)

    def scale(self, staleness: int) -> float:
        return 1 / divisor(staleness, self.at_zero)
