"""Reports of an actor's waits for other actors, in which the master finds deadlocks.

Without `concurrency`, an actor runs its methods on its main thread; so does a class with async
methods for its plain ones.  While that thread waits, the actor serves no other calls.  So a call of
an actor to itself would never return: it raises Deadlock immediately.  The master finds cycles of
several actors (wait_graph.py), and the terminal of their script shows a warning.

Two kinds of wait are not reported: those with a timeout, which end without help, and those whose
call was answered, because a result is fetched from a store and needs no actor.
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

REPORT_AFTER_S = 2.0  # most waits are shorter, and cost nothing
REPORT_EVERY_S = 1.0


class WaitReporter:
    """Reports what the main thread of the actor `inside` waits for.  `send` sends to the master."""

    def __init__(self, inside: str, send: Callable[[msgspec.Struct], None]) -> None:
        self._inside = inside
        self._send = send
        self._main = threading.main_thread().ident
        self._numbers = itertools.count(1)
        self._waits: list[tuple[int, str]] = []  # a done-callback may wait within a wait
        self._has_reported = False

    def refuse(self, actor: str, what: str) -> None:
        """Raise Deadlock if the caller is about to wait for its own actor."""
        if actor == self._inside and threading.get_ident() == self._main:
            raise Deadlock(
                f"{what} is called by its own actor, which is busy with the call that waits for "
                "it: call the method on `self`, or allow several calls at a time "
                "(concurrency=2, or async methods)"
            )

    def begin(self, location: Location, future: "CallFuture[Any] | Room") -> bool:
        """Begin a wait without a timeout; return false if it blocks no other call."""
        if threading.get_ident() != self._main:
            return False
        self.refuse(location.actor, future.what)
        self._waits.append((next(self._numbers), future.what))
        return True

    def report(self, location: Location, begin: float, is_answered: bool) -> float | None:
        """Report the wait if it has lasted REPORT_AFTER_S; return how many seconds to sleep next.

        `is_answered`: only the value is still in transit.
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
        self._send(control.Blocked(wait=number, actor=location.actor, call=what, method=method))
        return REPORT_EVERY_S

    def end(self) -> None:
        """End the innermost wait."""
        self._waits.pop()
        self._unblock()

    def _unblock(self) -> None:
        if self._has_reported:
            self._has_reported = False
            self._send(control.Unblocked())
