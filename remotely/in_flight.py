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

from remotely.shield import Condition

log = logging.getLogger("remotely")

CALLS_A_HANDLE = 10_000
BYTES_A_HANDLE = 512 << 20
BYTES_A_PROCESS = 2 << 30


class Budget:
    """The bytes that a process has on their way; one value may be larger than all of it."""

    def __init__(self, nbytes: int = BYTES_A_PROCESS) -> None:
        self._limit = nbytes
        self._taken = 0
        self._changed = Condition()

    def wait_for_room(self, nbytes: int) -> None:
        with self._changed:
            while not self._has_room(nbytes):
                self._changed.wait()

    def take(self, nbytes: int, *, force: bool = False) -> bool:
        """Count what is about to be sent, if there is room for it; with `force` in any case."""
        with self._changed:
            taken = force or self._has_room(nbytes)
            if taken:
                self._taken += nbytes
            return taken

    def _has_room(self, nbytes: int) -> bool:
        return not self._taken or self._taken + nbytes <= self._limit

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
