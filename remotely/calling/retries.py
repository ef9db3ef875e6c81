"""Calls that are repeated if their outcome is lost, which their methods allow (objects/marks.py).

A call whose actor died, or whose machine was lost, may have run.  A repeated call joins the queue
of its actor (send_queue.py) before the calls that were made after it, and leaves in the actor's
next life (`max_restarts`) or on a new connection.  An error that the method itself raises is an
outcome, and is never retried.
"""

import itertools
from collections.abc import Callable
from typing import Any

from remotely.errors import ActorDied, WorkerLost
from remotely.futures.future import CallFuture

numbers = itertools.count(1)  # of calls, in the order in which they were made


class RetriedFuture(CallFuture[Any]):
    """The future of a call that is repeated if its outcome is lost; `again` has it sent."""

    def __init__(
        self, what: str, keep: object, again: Callable[[CallFuture[Any]], None], retries: int
    ) -> None:
        super().__init__(what, keep)
        self._again: Callable[[CallFuture[Any]], None] | None = again
        self._left = retries
        self._may_have_run = False  # in an earlier try
        self.number = next(numbers)

    def lose(self, error: BaseException) -> None:
        """Send the call again if that may help.  Never waits."""
        again = self._again
        if not isinstance(error, ActorDied | WorkerLost) or again is None:
            super().lose(error)
        elif self._left:
            self._left -= 1
            self._may_have_run |= error.may_have_run
            self.call_id = 0
            again(self)
        else:
            if self._may_have_run and not error.may_have_run:
                error.may_have_run = True
                error.add_note("An earlier try of this call may have run.")
            super().lose(error)

    def _finish(self) -> None:
        self._again = None  # it holds the arguments
        super()._finish()
