"""Staleness-scaled (SASGD): the staler a contribution is, the smaller its step.

    theta <- theta - (rate / s(tau)) g

Zhang, Gupta, Lian, Liu 2015, https://arxiv.org/abs/1511.05950.  The paper's s(tau) = tau leaves
tau = 0 undefined.  There are two readings: `max1`, max(tau, 1), does not scale the step there;
`plus1`, tau + 1, is that of the simulator of the FASGD paper.

The papers use plain descent.  With another optimizer, its step is divided.
"""

from dataclasses import dataclass
from typing import Annotated

from remotely_rl.errors import SyncError
from remotely_rl.sync.rules.asynchronous import Asynchronous

READINGS = ("max1", "plus1")


def check_reading(reading: str, allowed: tuple[str, ...] = READINGS) -> None:
    """Raise SyncError for a reading that a rule does not support."""
    if reading not in allowed:
        raise SyncError(f"at_zero must be {' or '.join(allowed)}, not {reading!r}")


def divisor(staleness: int, reading: str) -> int:
    """Return s(tau)."""
    return staleness + 1 if reading == "plus1" else max(staleness, 1)


@dataclass(eq=False)
class StalenessScaled(Asynchronous):
    """See the module's docstring."""

    at_zero: Annotated[str, "what staleness is divided by: max1 or plus1"] = "max1"

    def setup(self) -> None:
        check_reading(self.at_zero)

    def scale(self, staleness: int) -> float:
        return 1 / divisor(staleness, self.at_zero)
