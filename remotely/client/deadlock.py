"""Reports of an actor's waits for other actors.

The master finds deadlocks in them, and lends the CPUs of an actor that waits (master/lending.py).

Without `concurrency`, an actor runs its methods on its main thread; so does a class with async
methods for its plain ones.  While that thread waits, the actor serves no other calls.  So a call of
an actor to itself would never return: it raises Deadlock immediately.  The master finds cycles of
several actors (wait_graph.py), and the terminal of their script shows a warning.

A wait with a timeout is reported as such: it ends without help, so it is in no deadlock.  A wait
whose call was answered is not reported: a result is fetched from a store, and needs no actor.
"""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from remotely.calling.back_pressure import RoomForCall
from remotely.errors import Deadlock
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.protocol import control
from remotely.transport import activity

REPORT_AFTER_S = 2.0  # most waits are shorter, and cost nothing
REPORT_EVERY_S = 1.0


class MainWait(NamedTuple):
    """A wait of the main thread for a call of another actor."""

    number: int
    actor: str
    what: str
    has_timeout: bool
    begun: float


class WaitReporter:
    """Reports what the main thread of the actor `inside` waits for.  `send` sends to the master."""

    def __init__(self, inside: str, send: Callable[[msgspec.Struct], None]) -> None:
        self._inside = inside
        self._send = send
        self._main = threading.main_thread().ident
        self._numbers = itertools.count(1)
        self._waits: list[MainWait] = []  # a done-callback may wait within a wait
        self._has_reported = False

    def refuse(self, actor: str, what: str) -> None:
        """Raise Deadlock if the caller is about to wait for its own actor."""
        if actor == self._inside and threading.get_ident() == self._main:
            raise Deadlock(
                f"{what} is called by its own actor, which is busy with the call that waits for "
                "it: call the method on `self`, or allow several calls at a time "
                "(concurrency=2, or async methods)"
            )

    def begin(self, actor: str, future: "CallFuture[Any] | RoomForCall", has_timeout: bool) -> bool:
        """Begin a wait for a call of an actor; return false if it blocks no other call."""
        if threading.get_ident() != self._main:
            return False
        if not has_timeout:
            self.refuse(actor, future.what)
        number, begun = next(self._numbers), time.monotonic()
        self._waits.append(MainWait(number, actor, future.what, has_timeout, begun))
        return True

    def report(self, is_answered: bool = False) -> float | None:
        """Report the innermost wait if it has lasted REPORT_AFTER_S; return how many seconds to
        sleep next.

        `is_answered`: only the value is still in transit.
        """
        if is_answered:
            self._unblock()
            return None
        wait = self._waits[-1]
        waited_s = time.monotonic() - wait.begun
        if waited_s < REPORT_AFTER_S:
            return REPORT_AFTER_S - waited_s
        self._has_reported = True
        self._send(
            control.Blocked(
                wait=wait.number,
                actor=wait.actor,
                call=wait.what,
                method=activity.own_method(),
                has_timeout=wait.has_timeout,
            )
        )
        return REPORT_EVERY_S

    def sleep_until(
        self,
        is_over: Callable[[], object],
        timeout_s: float | None,
        actor: str,
        future: CallFuture[Any],
    ) -> None:
        """Sleep as `wakeup.sleep_until` about a call that waits in a queue, and report that."""
        if is_over() or not self.begin(actor, future, timeout_s is not None):
            wakeup.sleep_until(is_over, timeout_s, future)
            return
        try:
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            while not is_over():
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return
                wakeup.sleep_until(is_over, shorter(left_s, self.report()), future)
        finally:
            self.end()

    def end(self) -> None:
        """End the innermost wait."""
        self._waits.pop()
        self._unblock()

    def _unblock(self) -> None:
        if self._has_reported:
            self._has_reported = False
            self._send(control.Unblocked())


def shorter(one_s: float | None, other_s: float | None) -> float | None:
    """Return the shorter of two times; None is endless."""
    if one_s is None or other_s is None:
        return other_s if one_s is None else one_s
    return min(one_s, other_s)
