"""Which stores could not be reached a moment ago, from here or from another machine.

Each is tried again after a while, longer each time.  The first time is said, once: it may be a
firewall, and everything then works, but slower.
"""

import logging
import time
from typing import NamedTuple

from remotely.protocol.address import place
from remotely.protocol.control import BulkAddress, StoreAddress
from remotely.protocol.resources import format_bytes
from remotely.transport.listening import nearest
from remotely.values.parcel import SEND_FROM_BYTES

log = logging.getLogger("remotely")

AVOID_S, AVOID_AT_MOST_S = 1.0, 60.0

Address = StoreAddress | BulkAddress


class Way(NamedTuple):
    """From this machine, or from the store of another, to a store."""

    to: Address
    origin: BulkAddress | None = None


class Avoidance:
    """Any thread may use it.  `machine` is the name of this one."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._avoided: dict[Way, tuple[float, float]] = {}  # until when, and for how long
        self._told: set[Way] = set()

    def is_on(self, way: Way) -> bool:
        """Tell whether a way is to be avoided now."""
        until, _ = self._avoided.get(way, (0.0, 0.0))
        return until > time.monotonic()

    def pairs(self) -> set[tuple[BulkAddress, BulkAddress]]:
        """Return from which stores other stores cannot be reached now."""
        return {
            (way.origin, way.to)
            for way in list(self._avoided)
            if way.origin is not None and isinstance(way.to, BulkAddress) and self.is_on(way)
        }

    def begin(self, way: Way, why: str) -> None:
        """A way could not be gone."""
        _, last_s = self._avoided.get(way, (0.0, AVOID_S / 2))
        wait_s = min(2 * last_s, AVOID_AT_MOST_S)
        self._avoided[way] = time.monotonic() + wait_s, wait_s
        if way in self._told:
            return
        self._told.add(way)
        if way.origin is None:
            origin, instead = self._machine, "go through the sockets of the actors there"
        else:
            origin, instead = f"the store at {_place(way.origin)}", "are brought there from here"
        log.warning(
            "large values do not get from %s to the store at %s (%s): they %s, which is slower. "
            "Each worker listens at two ports for values of %s or more, which have to be open "
            "between all machines",
            origin,
            _place(way.to),
            why,
            instead,
            format_bytes(SEND_FROM_BYTES),
        )

    def end(self, way: Way) -> None:
        """A way could be gone."""
        self._avoided.pop(way, None)


def _place(address: Address) -> str:
    return place(nearest(address.tcp))
