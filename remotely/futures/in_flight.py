"""How many calls, and bytes of their arguments, may be in flight to one actor."""

import logging
import threading
from typing import Any

from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.machine.shield import shield
from remotely.protocol.resources import format_bytes

log = logging.getLogger("remotely")

MAX_CALLS = 10_000  # of one handle
MAX_BYTES = 512 << 20  # of one handle


class InFlight:
    """Counts calls from when they are sent to their outcomes."""

    def __init__(self, actor_name: str) -> None:
        self._actor_name = actor_name
        self._calls = 0
        self._nbytes = 0
        self._lock = threading.RLock()  # a signal that the shield does not know may strike
        self._has_warned = False

    def wait_for_room(self, nbytes: int) -> None:
        """Return when another call with so many bytes may leave; a single one may at any time."""
        if self._has_room(nbytes):
            return
        if not self._has_warned:
            self._has_warned = True
            warn(self._actor_name, self._calls, self._nbytes)
        wakeup.sleep_until(lambda: self._has_room(nbytes), about=self)

    def add(self, future: CallFuture[Any], nbytes: int) -> None:
        """Count a call until it has an outcome."""
        with shield, self._lock:
            self._calls += 1
            self._nbytes += nbytes
        future.add_done_callback(lambda _: self._take_off(nbytes))

    def _has_room(self, nbytes: int) -> bool:
        if self._calls >= MAX_CALLS:
            return False
        return not self._nbytes or self._nbytes + nbytes <= MAX_BYTES

    def _take_off(self, nbytes: int) -> None:
        with shield, self._lock:
            self._calls -= 1
            self._nbytes -= nbytes
        wakeup.wake(self)


def warn(actor_name: str, calls: int, nbytes: int) -> None:
    log.warning(
        "%d calls to %s (%s) have no result yet: from now on, submit waits whenever so many "
        "are in flight. Collect results as you go, or add actors",
        calls,
        actor_name,
        format_bytes(nbytes),
    )
