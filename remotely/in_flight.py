"""Back-pressure: what may be on its way and unanswered, so that memory stays flat.

A client may be faster than its actor.  Past these bounds `submit` waits for earlier calls before
it sends a further one, and says so, once a handle.
"""

import logging
import threading

log = logging.getLogger("remotely")

CALLS_A_HANDLE = 10_000
BYTES_A_HANDLE = 512 << 20
BYTES_A_PROCESS = 2 << 30


class Budget:
    """The bytes that a process has on their way; one value may be larger than all of it."""

    def __init__(self, nbytes: int = BYTES_A_PROCESS) -> None:
        self._limit = nbytes
        self._taken = 0
        self._changed = threading.Condition()

    def take(self, nbytes: int, wait: bool) -> None:
        """Count what is about to be sent; with `wait`, once there is room for it."""
        with self._changed:
            while wait and self._taken and self._taken + nbytes > self._limit:
                self._changed.wait()
            self._taken += nbytes

    def give(self, nbytes: int) -> None:
        with self._changed:
            self._taken -= nbytes
            self._changed.notify_all()


def tell(actor: str, calls: int, nbytes: int) -> None:
    log.warning(
        "%d calls to %s (%d MiB) wait for their answers: submit waits too, from now on, whenever "
        "so much is on its way. Collect results as you go, or add actors",
        calls,
        actor,
        nbytes >> 20,
    )
