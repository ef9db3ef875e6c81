"""Reports of an actor's waits for other actors, in which the master finds deadlocks.

Calls of a class without `concurrency` run on the main thread of their actor, and so do the plain
methods of a class with async methods.  While that thread waits, the actor serves nobody.  So a call
of an actor to itself would never return, and is refused at once.  A cycle of several actors is
found by the master (wait_graph.py), and told on the terminal of their script.

A wait with a timeout is not reported: it ends by itself.  Neither is one whose call has been
answered: a result that is being fetched comes from a store, and no actor has to do anything for it.
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from remotely.calling.back_pressure import Room
from remotely.errors import Deadlock
from remotely.futures.future import CallFuture
from remotely.protocol import control
from remotely.protocol.control import Location
from remotely.transport import activity

REPORT_AFTER_S = 2.0  # most waits are over by then, and cost nothing
REPORT_EVERY_S = 1.0


class WaitReporter:
    """Reports what the main thread of an actor waits for.  `tell` sends to the master."""

    def __init__(self, inside: str, tell: Callable[[msgspec.Struct], None]) -> None:
        self._inside = inside
        self._tell = tell
        self._main = threading.main_thread().ident
        self._numbers = itertools.count(1)
        self._waits: list[tuple[int, str]] = []  # a done-callback may wait within a wait
        self._has_reported = False

    def refuse(self, actor: str, what: str) -> None:
        """Raise Deadlock if the caller is about to wait for the actor in which it runs."""
        if actor == self._inside and threading.get_ident() == self._main:
            raise Deadlock(
                f"{what} is called by its own actor, which is busy with the call that waits for "
                "it: call the method on `self`, or allow several calls at a time "
                "(concurrency=2, or async methods)"
            )

    def begin(self, location: Location, future: "CallFuture[Any] | Room") -> bool:
        """A wait without a timeout begins.  Returns false if it blocks no other call."""
        if threading.get_ident() != self._main:
            return False
        self.refuse(location.actor, future.what)
        self._waits.append((next(self._numbers), future.what))
        return True

    def go_on(self, location: Location, begin: float, is_answered: bool) -> float | None:
        """Report the wait if it has lasted for a while.  Returns how long to wait now.

        `is_answered`: only the value is still on its way.
        """
        if is_answered:
            self._unblock()
            return None
        waited_s = time.monotonic() - begin
        if waited_s < REPORT_AFTER_S:
            return REPORT_AFTER_S - waited_s
        number, what = self._waits[-1]
        self._has_reported = True
        method = activity.own_method()
        self._tell(control.Blocked(wait=number, actor=location.actor, call=what, method=method))
        return REPORT_EVERY_S

    def end(self) -> None:
        """The last wait that began is over."""
        self._waits.pop()
        self._unblock()

    def _unblock(self) -> None:
        if self._has_reported:
            self._has_reported = False
            self._tell(control.Unblocked())
