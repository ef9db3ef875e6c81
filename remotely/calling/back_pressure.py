"""Back-pressure: limits on the pending calls, so that a fast client's memory use stays bounded.

Past these limits `submit` waits until any pending call is done, and logs a warning once for each
actor, and once for the process.  Calls that a done-callback submits never wait: the callbacks
behind it would.

The limits apply to requests: calls, and the bytes of their arguments.  A result belongs to its
caller as soon as its actor has computed it: the client keeps it until its future is dropped, and an
actor never waits for a reader.  So results take the memory of the futures that a program keeps, of
which at most MAX_CALLS are pending.

Two rules keep calls that wait for each other, as the members of a group that meet, from waiting for
ever:

    values count, not calls    the bytes of one value count once in the process, for however many
                               actors, until the last call with it has its outcome
    a group is admitted whole  no member gets its call before there is room for those of all

Refused: to stop receiving when many replies are unread.  The future that you wait for would then
come after those that you have not asked for, and never, if you collect results in another order
than you submitted them.  Also refused: to wait for the oldest call, which may be a service that
runs as long as the program.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
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


class BackPressure:
    """What counts of one actor: its calls without an outcome, and the bytes of their arguments."""

    def __init__(self) -> None:
        self.calls = 0
        self.nbytes = 0
        self.has_warned = False


class Bounded(Protocol):
    """An actor whose calls are limited."""

    name: str

    @property
    def back_pressure(self) -> BackPressure: ...

    @property
    def unanswered(self) -> int:
        """The number of its calls without an outcome."""


class RoomForCall:
    """Room for another call, to wait for.  A `Receiver` waits for it as for a future."""

    what = "room for another call"

    def __init__(self, about: object, has_room: Callable[[], bool]) -> None:
        self._about = about
        self.done = has_room

    @property
    def answered(self) -> bool:
        return self.done()

    def block(self, timeout: float | None) -> None:
        """Wait while another thread receives: each outcome wakes the waiters of its actor."""
        wakeup.sleep_until(self.done, timeout, self._about)


Wait = Callable[[Any, RoomForCall], object]  # waits for room at an actor


def wait_for_others(actor: Bounded, room: RoomForCall) -> None:
    """Wait for room at an actor, while other threads receive its outcomes."""
    room.block(None)


class InFlight:
    """The pending calls that carry one value: a `Counts` of their futures."""

    def __init__(
        self, limits: "Limits", nbytes: int, calls: Sequence[tuple[Bounded, CallFuture[Any]]]
    ) -> None:
        self.nbytes = nbytes
        self.calls = {future: actor.back_pressure for actor, future in calls}
        self._limits = limits

    def settle(self, future: CallFuture[Any]) -> None:
        """Stop counting a call, which has its outcome.  Idempotent."""
        self._limits.settle(self, future)


class Limits:
    """The limits of the calls of one process.  A value may exceed a limit if it is alone."""

    def __init__(self, nbytes: int = MAX_BYTES_OF_PROCESS) -> None:
        self.taken_bytes = 0
        self._limit = nbytes
        self._lock = RLock()
        self._has_warned = False

    def admit(
        self, calls: Sequence[tuple[Bounded, CallFuture[Any]]], nbytes: int, wait: Wait | None
    ) -> None:
        """Count the calls with one value of `nbytes`, all at once, until their outcomes.

        Wait until there is room for all of them, unless `wait` is None.
        """
        if callbacks.users.is_own_thread():
            wait = None
        while True:
            full: Bounded | Limits | None = None
            with shield, self._lock:
                if wait is not None:
                    full = self._full(calls, nbytes)
                if full is None:
                    self._count(InFlight(self, nbytes, calls), calls)
                    return
            if isinstance(full, Limits):
                self._warn()
                wakeup.sleep_until(partial(self.has_room, nbytes), about=self)
            elif wait is not None:
                _warn_of(full)
                room = RoomForCall(full, partial(_has_room, full, nbytes))
                while not room.done():
                    wait(full, room)

    def settle(self, value: InFlight, future: CallFuture[Any]) -> None:
        with shield:
            with self._lock:
                pressure = value.calls.pop(future, None)
                if pressure is None:
                    return
                pressure.calls -= 1
                pressure.nbytes -= value.nbytes
                if value.calls:
                    return
                self.taken_bytes -= value.nbytes
            wakeup.wake(self)

    def has_room(self, nbytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + nbytes <= self._limit

    def _full(
        self, calls: Sequence[tuple[Bounded, CallFuture[Any]]], nbytes: int
    ) -> "Bounded | Limits | None":
        """Return what has no room for these calls; None if there is room for all of them."""
        for actor, _ in calls:
            if not _has_room(actor, nbytes):
                return actor
        return None if not nbytes or self.has_room(nbytes) else self

    def _count(self, value: InFlight, calls: Sequence[tuple[Bounded, CallFuture[Any]]]) -> None:
        self.taken_bytes += value.nbytes
        for actor, future in calls:
            actor.back_pressure.calls += 1
            actor.back_pressure.nbytes += value.nbytes
            future.counted_by = value

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "calls with %s of arguments have no result yet: from now on, submit waits whenever "
                "there are that many bytes. Collect results as you go; if the calls wait for each "
                "other, send them as one group, or pass what put() returns",
                format_bytes(self.taken_bytes),
            )


def settle_unsent(futures: Iterable[CallFuture[Any]]) -> None:
    """Stop counting those calls that were not sent, because sending them was interrupted."""
    for future in futures:
        if future.receiver is None and future.counted_by is not None:
            future.counted_by.settle(future)


def _has_room(actor: Bounded, nbytes: int) -> bool:
    if actor.unanswered >= MAX_CALLS:
        return False
    pending = actor.back_pressure.nbytes
    return not pending or pending + nbytes <= MAX_BYTES


def _warn_of(actor: Bounded) -> None:
    if not actor.back_pressure.has_warned:
        actor.back_pressure.has_warned = True
        log.warning(
            "%d calls to %s (%s) have no result yet: from now on, submit waits whenever that "
            "many are pending. Collect results as you go, or add actors",
            actor.unanswered,
            actor.name,
            format_bytes(actor.back_pressure.nbytes),
        )


limits = Limits()  # of this process
