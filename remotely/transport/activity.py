"""The calls that an actor runs and has begun, in a page of memory that its worker can read.

A thread of the actor could not report it while a method holds the interpreter, which is when people
ask; and a process that was killed reports nothing.  So the actor writes it down, and the worker
reads it when asked, and when the actor has died.  This costs a call 0.2 us.

    bytes      what
    0-7        when the call began that has run longest, by the machine's monotonic clock
    8-9        how many calls run
    16-79      the method of that call, in UTF-8
    80-87      how many connections have been given a slot of the table below
    96-1695    the table: the last call that has begun, for each of 200 connections
    1696-4095  the routes of these

The reader may look between two writes.  Of what runs it then sees a method that has just ended.  Of
what has begun it never sees too little: the order of the writes is in `Begun`.
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
MAX_NAMES = 1000  # remembered; a caller may ask for any
SLOTS = 200  # connections in the table
MAX_WITHOUT_SLOT = 10_000  # connections that have lost theirs, and are remembered
_HEAD = struct.Struct("@dH")
_MOST = 0xFFFF
_NAME = slice(16, 16 + NAME_BYTES)
_GIVEN = slice(80, 88)
_LAST = slice(96, 96 + 8 * SLOTS)
_ROUTES = slice(_LAST.stop, _LAST.stop + ROUTE_BYTES * SLOTS)
_NO_ROUTE = bytes(ROUTE_BYTES)


class Seen(NamedTuple):
    """`method` is that of the call that has run longest, for `method_s`."""

    running: int = 0
    method: str = ""
    method_s: float = 0.0


@contextlib.contextmanager
def new() -> Iterator[tuple[int, mmap.mmap]]:
    """Yield a page: a descriptor to pass on, which is closed afterwards, and the memory."""
    fd = memory_file.create("remotely-activity", SIZE)
    try:
        yield fd, mmap.mmap(fd, SIZE)
    finally:
        os.close(fd)


_own: mmap.mmap | None = None  # of the actor that this process is


def received(fd: int) -> mmap.mmap:
    """Return the page of a descriptor that was passed on, and close the descriptor."""
    global _own
    try:
        _own = mmap.mmap(fd, SIZE)
        return _own
    finally:
        os.close(fd)


def own_method() -> str:
    """Return the one method that this process runs, if it is an actor; empty if it runs several."""
    seen = Seen() if _own is None else look(_own)
    return seen.method if seen.running == 1 else ""


def look(page: mmap.mmap) -> Seen:
    """Return what runs; nothing once the page is closed.

    The page may hold anything at all, because its writer may be compromised.
    """
    if page.closed:
        return Seen()
    began, running = _HEAD.unpack_from(page)
    now = time.monotonic()
    if not running or not 0 <= began <= now:
        return Seen(running)
    method = page[_NAME].rstrip(b"\0").decode(errors="replace")
    return Seen(running, method, now - began)


def begun(page: mmap.mmap) -> tuple[dict[bytes, int], bool]:
    """Return the last call of each connection that has begun, and whether that is all of them.

    As for `look`, the page may hold anything.
    """
    if page.closed:
        return {}, False
    (given,) = memoryview(page[_GIVEN]).cast("Q")
    last, routes = memoryview(page[_LAST]).cast("Q"), page[_ROUTES]
    table = {}
    for slot in range(min(given, SLOTS)):
        route = routes[ROUTE_BYTES * slot : ROUTE_BYTES * (slot + 1)]
        if route != _NO_ROUTE:  # else its process ended before a call of it began
            table[route] = min(last[slot], MOST)
    return table, given <= SLOTS


class Begun:
    """The last call of each connection that has begun, written down before it runs.

    Calls of a connection begin in the order of their ids, so the last one says it all.  A
    connection is given a slot with its first call.  If all slots are taken, it gets the one that
    was given longest ago, and the connection that loses it gets another with its next call.

    Whoever runs calls on one thread writes `last[slots[route]]` itself, and calls `note` if there
    is no slot.  Calls of `note` never overlap; any thread may ask `last_of`.
    """

    def __init__(self, page: mmap.mmap) -> None:
        view = memoryview(page)
        self._given = view[_GIVEN].cast("Q")
        self._routes = view[_ROUTES]
        self.last = view[_LAST].cast("Q")
        self.slots: dict[bytes, int] = {}  # the first to be given first
        self._without_slot: dict[bytes, int] = {}
        self._has_forgotten = False

    def note(self, route: bytes, call_id: int) -> None:
        """A call is about to begin.  A later one may have begun already."""
        slot = self.slots.get(route)
        if slot is None:
            self._give_slot(route, max(call_id, self._without_slot.get(route, 0)))
        elif call_id > self.last[slot]:
            self.last[slot] = call_id

    def last_of(self, route: bytes) -> int | None:
        """Return the last call of a connection that has begun; None if that is not known."""
        slot = self.slots.get(route)
        if slot is not None:
            last = self.last[slot]
            if self.slots.get(route) == slot:  # else another thread has just given it away
                return last
        return self._without_slot.get(route, None if self._has_forgotten else 0)

    def _give_slot(self, route: bytes, call_id: int) -> None:
        """The process may be killed between any two of these lines.

        A slot has no route while its number changes: the old route is then one of those that the
        table lacks, and a call of the new one has not begun.
        """
        if len(route) != ROUTE_BYTES:  # of no client of ours, or of an engine that reads no page
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
        """Nobody knows which of these clients are gone, so all are forgotten now and then."""
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
        self._method = ""  # that stands in the page
        self._names: dict[str, bytes] = {}

    def _write_method(self, method: str) -> None:
        self._method = method
        if method not in self._names:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            data = method.encode(errors="replace")[:NAME_BYTES]
            self._names[method] = data.ljust(NAME_BYTES, b"\0")
        self.page[_NAME] = self._names[method]


class OneByOne(_Writer):
    """Of an actor that runs one call at a time."""

    def begin(self, method: str, calls: int = 1) -> int:
        """Record that a method begins, for so many calls; return the number to pass to `end`."""
        if method != self._method:
            self._write_method(method)
        self._began[0] = time.monotonic()
        self._running[0] = calls
        return 0

    def end(self, number: int) -> None:
        self._running[0] = 0


class Several(_Writer):
    """Of an actor that runs several calls, on threads or on an event loop."""

    def __init__(self, page: mmap.mmap) -> None:
        super().__init__(page)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calls: dict[int, tuple[str, int, float]] = {}  # the first to begin first
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
