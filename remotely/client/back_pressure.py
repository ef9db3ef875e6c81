"""Back-pressure: limits on the calls in flight, so that memory use stays flat.

A client may be faster than its actor.  Past these limits `submit` waits for earlier calls before it
sends another one, and logs a warning once for each handle.

The limits apply to what is requested: calls, and the bytes of their arguments.  A result belongs to
its caller as soon as its actor has computed it: the client keeps it until its future is dropped,
and an actor never waits for a reader.  So the memory of results is that of the futures which a
program keeps, of which at most MAX_CALLS are unanswered.  Refused: to stop reading when many
replies have arrived unread.  A future that you wait for would then come after those that you have
not asked for yet, and never, if you collect results in another order than you submitted.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from remotely.futures import in_flight, wakeup
from remotely.futures.future import CallFuture
from remotely.machine.shield import shield

MAX_BYTES_OF_PROCESS = 2 << 30


class ByteBudget:
    """The bytes in flight of a whole process.  A single value may exceed the budget if alone."""

    def __init__(self, nbytes: int = MAX_BYTES_OF_PROCESS) -> None:
        self._limit = nbytes
        self._taken = 0
        self._lock = threading.RLock()  # a signal that the shield does not know may strike

    def wait_for_room(self, nbytes: int) -> None:
        wakeup.sleep_until(partial(self._has_room, nbytes), about=self)

    def take(self, nbytes: int, *, force: bool = False) -> bool:
        """Count bytes that are about to be sent, if there is room for them or with `force`."""
        with shield, self._lock:
            taken = force or self._has_room(nbytes)
            if taken:
                self._taken += nbytes
            return taken

    def _has_room(self, nbytes: int) -> bool:
        return not self._taken or self._taken + nbytes <= self._limit

    def give_back(self, nbytes: int) -> None:
        with shield, self._lock:
            self._taken -= nbytes
        wakeup.wake(self)


class BackPressure:
    """The limits of one channel.

    `pending` are the calls of the channel that have no reply, oldest first; `lock` guards them.
    """

    def __init__(
        self,
        budget: ByteBudget,
        actor_name: str,
        pending: dict[int, CallFuture[Any]],
        lock: "threading.RLock",
    ) -> None:
        self.nbytes = 0
        self._budget = budget
        self._actor_name = actor_name
        self._pending = pending
        self._pending_lock = lock
        self._lock = threading.RLock()  # a signal that the shield does not know may strike
        self._has_warned = False

    def exceeds(self, nbytes: int) -> bool:
        """Tell whether a call with so many bytes has to wait for earlier ones."""
        return (
            len(self._pending) >= in_flight.MAX_CALLS or self.nbytes + nbytes > in_flight.MAX_BYTES
        )

    def wait_for_room(self, nbytes: int, wait: Callable[[CallFuture[Any]], None]) -> None:
        """Have `wait` wait for the oldest calls until there is room for so many bytes."""
        if not self._has_warned:
            self._has_warned = True
            in_flight.warn(self._actor_name, len(self._pending), self.nbytes)
        while self.exceeds(nbytes) and (oldest := self._oldest()) is not None:
            wait(oldest)

    def count(self, nbytes: int, future: CallFuture[Any], may_wait: bool) -> None:
        """Count a large value that is about to be sent, when the process has room for it."""
        while not future.nbytes:
            if may_wait:
                self._budget.wait_for_room(nbytes)
            with shield, self._lock:
                if self._budget.take(nbytes, force=not may_wait):
                    future.nbytes = nbytes
                    self.nbytes += nbytes

    def settle(self, future: CallFuture[Any]) -> None:
        """The large value of a call is no longer in flight.  Calling this twice is harmless."""
        if future.nbytes:
            with shield:
                with self._lock:
                    nbytes, future.nbytes = future.nbytes, 0
                    self.nbytes -= nbytes
                self._budget.give_back(nbytes)

    def _oldest(self) -> CallFuture[Any] | None:
        with self._pending_lock:
            return next(iter(self._pending.values()), None)
