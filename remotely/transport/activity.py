"""The activity page: the running and begun calls of an actor, in memory that its worker can read.

A thread of the actor could not report them while a method holds the GIL, which is when people ask,
and a killed process reports nothing.  So the actor writes them to a page, which the worker reads
when it is asked, and when the actor has died.  This costs 0.2 us per call.

    bytes      content
    0-7        when the oldest running call began, on the machine's monotonic clock
    8-9        the number of running calls
    10-11      the number of streams that have not ended
    16-79      the method of the oldest running call, in UTF-8
    80-87      the number of connections that were given a slot of the table below
    96-1695    the table: the last call that has begun, for each of 200 connections
    1696-4095  the routes of these connections

The worker may read between two writes.  Then the method that it sees may have just ended.  Of the
calls that have begun it never misses one; see the order of the writes in `BegunCalls`.
"""

import contextlib
import itertools
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from remotely.machine import memory_file
from remotely.protocol.numbers import MOST, ROUTE_BYTES

SIZE = mmap.PAGESIZE
NAME_BYTES = 64
MAX_NAMES = 1000  # cached method names; a caller may ask for any name
SLOTS = 200  # connections in the table
MAX_WITHOUT_SLOT = 10_000  # remembered connections that have lost their slot
_HEAD = struct.Struct("@dHH")
_MOST = 0xFFFF
_NAME = slice(16, 16 + NAME_BYTES)
_GIVEN = slice(80, 88)
_LAST = slice(96, 96 + 8 * SLOTS)
_ROUTES = slice(_LAST.stop, _LAST.stop + ROUTE_BYTES * SLOTS)
_NO_ROUTE = bytes(ROUTE_BYTES)


class Seen(NamedTuple):
    """The running calls.  `method` is that of the oldest, which has run for `method_s`."""

    running: int = 0
    method: str = ""
    method_s: float = 0.0
    streams: int = 0  # that have not ended; perhaps none of them runs


@contextlib.contextmanager
def new() -> Iterator[tuple[int, mmap.mmap]]:
    """Create a page.  Yield its descriptor, to pass to the actor, and its memory."""
    fd = memory_file.create("remotely-activity", SIZE)
    try:
        yield fd, mmap.mmap(fd, SIZE)
    finally:
        os.close(fd)


_own: mmap.mmap | None = None  # the page of this process, if it is an actor


def received(fd: int) -> mmap.mmap:
    """Map the page of a descriptor that the worker has passed, and close the descriptor."""
    global _own
    try:
        _own = mmap.mmap(fd, SIZE)
        return _own
    finally:
        os.close(fd)


def own_method() -> str:
    """Return the method that this process runs; empty if it is no actor or runs several."""
    seen = Seen() if _own is None else look(_own)
    return seen.method if seen.running == 1 else ""


def look(page: mmap.mmap) -> Seen:
    """Return the running calls; none once the page is closed.

    The page may hold any bytes, because its writer may be compromised.
    """
    if page.closed:
        return Seen()
    began, running, streams = _HEAD.unpack_from(page)
    now = time.monotonic()
    if not running or not 0 <= began <= now:
        return Seen(running, streams=streams)
    method = page[_NAME].rstrip(b"\0").decode(errors="replace")
    return Seen(running, method, now - began, streams)


def begun(page: mmap.mmap) -> tuple[dict[bytes, int], bool]:
    """Return the last call that has begun by connection, and whether all connections are listed.

    As for `look`, the page may hold any bytes.
    """
    if page.closed:
        return {}, False
    (given,) = memoryview(page[_GIVEN]).cast("Q")
    last, routes = memoryview(page[_LAST]).cast("Q"), page[_ROUTES]
    table = {}
    for slot in range(min(given, SLOTS)):
        route = routes[ROUTE_BYTES * slot : ROUTE_BYTES * (slot + 1)]
        if route != _NO_ROUTE:  # else the process ended before a call on it began
            table[route] = min(last[slot], MOST)
    return table, given <= SLOTS


class BegunCalls:
    """The last call that has begun on each connection, recorded before the call runs.

    Calls on a connection begin in the order of their ids, so the last one suffices.  A connection
    gets a slot with its first call.  If all slots are taken, it takes the oldest one; the
    connection that loses that gets another slot with its next call.

    An engine that runs calls on one thread writes `last[slots[route]]` itself, and calls `note` if
    there is no slot.  Calls of `note` must not overlap; any thread may call `last_of`.
    """

    def __init__(self, page: mmap.mmap) -> None:
        view = memoryview(page)
        self._given = view[_GIVEN].cast("Q")
        self._routes = view[_ROUTES]
        self.last = view[_LAST].cast("Q")
        self.slots: dict[bytes, int] = {}  # oldest first
        self._without_slot: dict[bytes, int] = {}
        self._has_forgotten = False

    def note(self, route: bytes, call_id: int) -> None:
        """Record that a call is about to begin.  A later one may have begun already."""
        slot = self.slots.get(route)
        if slot is None:
            self._give_slot(route, max(call_id, self._without_slot.get(route, 0)))
        elif call_id > self.last[slot]:
            self.last[slot] = call_id

    def last_of(self, route: bytes) -> int | None:
        """Return the last call that has begun on a connection; None if that is not known."""
        slot = self.slots.get(route)
        if slot is not None:
            last = self.last[slot]
            if self.slots.get(route) == slot:  # else another thread has just reassigned the slot
                return last
        return self._without_slot.get(route, None if self._has_forgotten else 0)

    def _give_slot(self, route: bytes, call_id: int) -> None:
        """Assign a slot.  The process may be killed between any two of these lines.

        While the number in a slot changes, the slot has no route: the old route then counts as one
        that has lost its slot, and the call of the new one has not begun.
        """
        if len(route) != ROUTE_BYTES:  # not our client, or an engine without a page
            self._remember(route, call_id)
            return
        given = self._given[0]
        slot = given % SLOTS
        place = slice(ROUTE_BYTES * slot, ROUTE_BYTES * (slot + 1))
        self._given[0] = given + 1
        if given >= SLOTS:
            loser = next(iter(self.slots))
            self._remember(loser, self.last[slot])
            del self.slots[loser]
            self._routes[place] = _NO_ROUTE
        self.last[slot] = call_id
        self._routes[place] = route
        self.slots[route] = slot

    def _remember(self, route: bytes, call_id: int) -> None:
        """Remember a connection without a slot; at the limit, forget all the others.

        There is no telling which of their clients are gone.
        """
        if len(self._without_slot) >= MAX_WITHOUT_SLOT:
            self._has_forgotten = True
            self._without_slot.clear()
        self._without_slot[route] = call_id


class _Writer:
    def __init__(self, page: mmap.mmap) -> None:
        self.page = page
        view = memoryview(page)
        self._began = view[:8].cast("d")  # the quickest way to write a number
        self._running = view[8:10].cast("H")
        self._streams = view[10:12].cast("H")
        self._method = ""  # the one in the page
        self._names: dict[str, bytes] = {}

    def note_streams(self, count: int) -> None:
        """Record the number of streams that have not ended."""
        self._streams[0] = min(count, _MOST)

    def _write_method(self, method: str) -> None:
        self._method = method
        if method not in self._names:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            data = method.encode(errors="replace")[:NAME_BYTES]
            self._names[method] = data.ljust(NAME_BYTES, b"\0")
        self.page[_NAME] = self._names[method]


class OneByOne(_Writer):
    """The activity of an actor that runs one call at a time."""

    def begin(self, method: str, calls: int = 1) -> int:
        """Record that a method begins to serve `calls` calls; return the number for `end`."""
        if method != self._method:
            self._write_method(method)
        self._began[0] = time.monotonic()
        self._running[0] = calls
        return 0

    def end(self, number: int) -> None:
        self._running[0] = 0


class Several(_Writer):
    """The activity of an actor that runs several calls, on threads or on an event loop."""

    def __init__(self, page: mmap.mmap) -> None:
        super().__init__(page)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calls: dict[int, tuple[str, int, float]] = {}  # oldest first
        self._total = 0

    def begin(self, method: str, calls: int = 1) -> int:
        now = time.monotonic()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = method, calls, now
            self._add(calls)
        return number

    def end(self, number: int) -> None:
        with self._lock:
            _, calls, _ = self._calls.pop(number)
            self._add(-calls)

    def _add(self, calls: int) -> None:
        self._total += calls
        if self._total:
            method, _, self._began[0] = next(iter(self._calls.values()))
            if method != self._method:
                self._write_method(method)
        self._running[0] = min(self._total, _MOST)
