"""Back-pressure: what may be on its way and unanswered, so that memory stays flat.

A client may be faster than its actor.  Past these bounds `submit` waits for earlier calls before
it sends a further one, and says so, once a handle.

What is bounded is what is asked: calls, and the bytes of their arguments.  An answer belongs to its
caller from when its actor has it: it is kept by the client until its future is dropped, and an
actor never waits for a reader.  So the memory of results is that of the futures that a program
keeps, CALLS_A_HANDLE of them unanswered at most.  Refused: to stop reading when much has arrived
unread (a future that is waited for would come after those that nobody has asked for yet, and
never, if the program collects in another order than it submitted).
"""

import logging
import threading
from functools import partial
from typing import Any

from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.futures.shield import shield
from remotely.protocol.resources import format_bytes

log = logging.getLogger("remotely")

CALLS_A_HANDLE = 10_000
BYTES_A_HANDLE = 512 << 20
BYTES_A_PROCESS = 2 << 30


class Budget:
    """The bytes that a process has on their way; one value may be larger than all of it."""

    def __init__(self, nbytes: int = BYTES_A_PROCESS) -> None:
        self._limit = nbytes
        self._taken = 0
        self._lock = threading.RLock()  # of a signal that the shield does not know

    def wait_for_room(self, nbytes: int) -> None:
        wakeup.sleep_until(partial(self._has_room, nbytes), about=self)

    def take(self, nbytes: int, *, force: bool = False) -> bool:
        """Count what is about to be sent, if there is room for it; with `force` in any case."""
        with shield, self._lock:
            taken = force or self._has_room(nbytes)
            if taken:
                self._taken += nbytes
            return taken

    def _has_room(self, nbytes: int) -> bool:
        return not self._taken or self._taken + nbytes <= self._limit

    def give(self, nbytes: int) -> None:
        with shield, self._lock:
            self._taken -= nbytes
        wakeup.ring(self)


class Account:
    """The bytes of one handle's calls, which count towards the budget of the process too."""

    def __init__(self, budget: Budget) -> None:
        self.nbytes = 0
        self._budget = budget
        self._lock = threading.RLock()  # of a signal that the shield does not know

    def count(self, nbytes: int, future: CallFuture[Any], may_wait: bool) -> None:
        """Count a large value that is about to be sent, when there is room for it."""
        while not future.nbytes:
            if may_wait:
                self._budget.wait_for_room(nbytes)
            with shield, self._lock:
                if self._budget.take(nbytes, force=not may_wait):
                    future.nbytes = nbytes
                    self.nbytes += nbytes

    def settle(self, future: CallFuture[Any]) -> None:
        """Its value, if that was large, is no longer on its way.  Twice does no harm."""
        if future.nbytes:
            with shield:
                with self._lock:
                    nbytes, future.nbytes = future.nbytes, 0
                    self.nbytes -= nbytes
                self._budget.give(nbytes)


def tell(actor: str, calls: int, nbytes: int) -> None:
    log.warning(
        "%d calls to %s (%s) wait for their answers: submit waits too, from now on, whenever "
        "so much is on its way. Collect results as you go, or add actors",
        calls,
        actor,
        format_bytes(nbytes),
    )
