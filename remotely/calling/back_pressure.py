"""Back-pressure: limits on the pending calls, so that a fast client's memory use stays bounded.

Past these limits `submit` waits until any pending call is done, and logs a warning once for each
actor.  Calls that a done-callback submits never wait: the callbacks behind it would.

The limits apply to requests: calls, and the bytes of their arguments.  A result belongs to its
caller as soon as its actor has computed it: the client keeps it until its future is dropped, and an
actor never waits for a reader.  So results take the memory of the futures that a program keeps, of
which at most MAX_CALLS are pending.

Refused: to stop receiving when many replies are unread.  The future that you wait for would then
come after those that you have not asked for, and never, if you collect results in another order
than you submitted them.  Also refused: to wait for the oldest call, which may be a service that
runs as long as the program.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from remotely.futures import callbacks, wakeup
from remotely.futures.future import CallFuture
from remotely.machine.shield import RLock, shield
from remotely.protocol.resources import format_bytes

log = logging.getLogger("remotely")

MAX_CALLS = 10_000  # of one actor
MAX_BYTES = 512 << 20  # of one actor
MAX_BYTES_OF_PROCESS = 2 << 30


class Bounded(Protocol):
    """An actor whose calls are limited."""

    name: str

    @property
    def unanswered(self) -> int:
        """The number of its calls without an outcome."""


class Room:
    """Room for another call, to wait for.  A `Receiver` waits for it as for a future."""

    what = "room for another call"

    def __init__(self, actor: Bounded, has_room: Callable[[], bool]) -> None:
        self._actor = actor
        self.done = has_room

    @property
    def answered(self) -> bool:
        return self.done()

    def block(self, timeout: float | None) -> None:
        """Wait while another thread receives: each outcome wakes the waiters of its actor."""
        wakeup.sleep_until(self.done, timeout, self._actor)


Wait = Callable[[Any, float | None], object]  # as `Receiver.wait`; takes a Room as well


class ByteBudget:
    """The bytes in flight of a whole process.  A value may exceed the budget if it is alone.

    Call `take` and `give_back` with `shield`.
    """

    def __init__(self, nbytes: int = MAX_BYTES_OF_PROCESS) -> None:
        self._limit = nbytes
        self._taken = 0
        self._lock = RLock()

    def wait_for_room(self, nbytes: int) -> None:
        wakeup.sleep_until(partial(self._has_room, nbytes), about=self)

    def take(self, nbytes: int, *, force: bool = False) -> bool:
        """Count bytes, if there is room for them or with `force`; return whether they count."""
        with self._lock:
            taken = force or self._has_room(nbytes)
            if taken:
                self._taken += nbytes
            return taken

    def _has_room(self, nbytes: int) -> bool:
        return not self._taken or self._taken + nbytes <= self._limit

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self._taken -= nbytes
        wakeup.wake(self)


_process = ByteBudget()


class BackPressure:
    """The limits of one actor, and its counted calls that have no outcome yet."""

    def __init__(self, budget: ByteBudget = _process) -> None:
        self.nbytes = 0
        self._budget = budget
        self._counted: dict[CallFuture[Any], int] = {}
        self._lock = RLock()
        self._has_warned = False

    @property
    def calls(self) -> int:
        """The number of counted calls without an outcome."""
        return len(self._counted)

    def wait_for_room(self, actor: Bounded, nbytes: int, wait: Wait) -> None:
        """Wait until another call with `nbytes` of arguments may be sent."""
        if self._has_room(actor, nbytes) or callbacks.users.is_own_thread():
            return
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%d calls to %s (%s) have no result yet: from now on, submit waits whenever that "
                "many are pending. Collect results as you go, or add actors",
                actor.unanswered,
                actor.name,
                format_bytes(self.nbytes),
            )
        room = Room(actor, partial(self._has_room, actor, nbytes))
        while not room.done():
            wait(room, None)

    def count(self, future: CallFuture[Any], nbytes: int, may_wait: bool) -> None:
        """Count a call until its outcome; with `may_wait`, wait for room in the process first."""
        may_wait = may_wait and not callbacks.users.is_own_thread()
        while future.counted_by is None:
            if may_wait:
                self._budget.wait_for_room(nbytes)
            with shield, self._lock:
                if self._budget.take(nbytes, force=not may_wait):
                    self._counted[future] = nbytes
                    self.nbytes += nbytes
                    future.counted_by = self

    def settle(self, future: CallFuture[Any]) -> None:
        """Stop counting a call, which has its outcome.  Idempotent."""
        with shield:
            with self._lock:
                nbytes = self._counted.pop(future, 0)
                self.nbytes -= nbytes
            if nbytes:
                self._budget.give_back(nbytes)

    def _has_room(self, actor: Bounded, nbytes: int) -> bool:
        if actor.unanswered >= MAX_CALLS:
            return False
        return not self.nbytes or self.nbytes + nbytes <= MAX_BYTES
