"""The activity page: the calls of an actor, in memory that its worker can read.

A thread of the actor could not report them while a method holds the GIL, which is when people ask,
and a killed process reports nothing.  So the actor writes them to a page, which the worker reads
when it is asked, and when the actor has died.

    bytes        content
    0-7          when the oldest running call began, on the machine's monotonic clock
    8-9          the number of running calls
    10-11        the number of streams that have not ended
    16-79        the method of the oldest running call, in UTF-8
    80-87        the number of connections that were given a slot of the table below
    88-95        the seconds in which any call ran, of those that have ended
    96-1695      the table: the last call that has begun, for each of 200 connections
    1696-4095    the routes of these connections
    4096-4111    the bytes of the values that were received, and of those that were sent
    4112-4119    the number of methods in the tables below
    4160-6719    the names of 40 methods
    6720-7039    the seconds that the calls of each have taken
    7040-71679   how many calls of each have taken how long: a histogram (protocol/measures.py)
    71680-71999  how many calls of each have ended with an error
    72000-72007  since when a call has stopped for a debugger, on the same clock; 0 if none has
    72008        whether a debugger is attached
    72016-72271  where that call has stopped, in UTF-8
    72272-       the user's own metrics (own_metrics.py)

The worker may read between two writes.  Then the method that it sees may have just ended.  Of the
calls that have begun it never misses one; see the order of the writes in `BegunCalls`.

Calls are measured where they end, which costs 1.5 us.  So of calls that take less than SHORT_S, on
average one in 8 is measured, at random, and stands for those since the last one.  The first EXACT
calls, those that end with an error, others, and the bytes are counted exactly.
"""

import contextlib
import itertools
import mmap
import os
import random
import struct
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from remotely.machine import memory_file
from remotely.protocol.measures import BUCKETS, MetricFigures, bucket_of, quantile
from remotely.protocol.numbers import LONGEST_S, MOST, ROUTE_BYTES
from remotely.transport import own_metrics

NAME_BYTES = 64
MAX_NAMES = 1000  # cached method names; a caller may ask for any name
SLOTS = 200  # connections in the table
METHODS = 40  # measured by name; the last of them stands for all others
OTHERS = "(others)"
SHORT_S = 200e-6  # of calls that take less, some are measured
EXACT = 200  # of the first calls, all are
MAX_WITHOUT_SLOT = 10_000  # remembered connections that have lost their slot
_HEAD = struct.Struct("@dHH")
_coin = random.Random()  # not the module's, whose numbers are the user's
_MOST = 0xFFFF
_NAME = slice(16, 16 + NAME_BYTES)
_GIVEN = slice(80, 88)
_BUSY = slice(88, 96)
_LAST = slice(96, 96 + 8 * SLOTS)
_ROUTES = slice(_LAST.stop, _LAST.stop + ROUTE_BYTES * SLOTS)
TRAFFIC = slice(4096, 4112)
_KNOWN = slice(4112, 4120)
_METHODS = slice(4160, 4160 + NAME_BYTES * METHODS)
_SECONDS = slice(_METHODS.stop, _METHODS.stop + 8 * METHODS)
_TIMES = slice(_SECONDS.stop, _SECONDS.stop + 8 * BUCKETS * METHODS)
_ERRORS = slice(_TIMES.stop, _TIMES.stop + 8 * METHODS)
_STOPPED_SINCE = slice(_ERRORS.stop, _ERRORS.stop + 8)
_IS_DEBUGGED = _STOPPED_SINCE.stop
_STOPPED_AT = slice(_STOPPED_SINCE.stop + 8, _STOPPED_SINCE.stop + 8 + 256)
_OWN = slice(_STOPPED_AT.stop, _STOPPED_AT.stop + own_metrics.SIZE)
_NO_ROUTE = bytes(ROUTE_BYTES)
SIZE = -(-_OWN.stop // mmap.PAGESIZE) * mmap.PAGESIZE


class Seen(NamedTuple):
    """The running calls.  `method` is that of the oldest, which has run for `method_s`."""

    running: int = 0
    method: str = ""
    method_s: float = 0.0
    streams: int = 0  # that have not ended; perhaps none of them runs


class Stopped(NamedTuple):
    """A call that has stopped for a debugger; `where` is empty if none has."""

    where: str = ""
    seconds: float = 0.0
    is_debugged: bool = False  # a debugger is attached


class MethodTimes(NamedTuple):
    """The calls of one method that have ended."""

    method: str
    calls: int
    errors: int  # how many of them ended with one
    seconds: float  # in all
    p99_s: float  # the time in which 99 % of them have ended


class CallTimes(NamedTuple):
    """What an actor has done since it began."""

    busy_s: float = 0.0
    received: int = 0  # bytes of values
    sent: int = 0
    methods: tuple[MethodTimes, ...] = ()  # those that took the most time first

    @property
    def calls(self) -> int:
        return sum(each.calls for each in self.methods)

    @property
    def errors(self) -> int:
        return min(sum(each.errors for each in self.methods), MOST)


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
        keep_own_metrics(_own)
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


def note_stopped(page: mmap.mmap, where: str, since: float, is_debugged: bool) -> None:
    """Record the call that has stopped for a debugger; that there is none if `where` is empty."""
    room = _STOPPED_AT.stop - _STOPPED_AT.start
    page[_STOPPED_SINCE] = bytes(8)
    page[_STOPPED_AT] = where.encode(errors="replace")[:room].ljust(room, b"\0")
    page[_IS_DEBUGGED] = is_debugged
    if where:
        page[_STOPPED_SINCE] = struct.pack("@d", since)


def stopped(page: mmap.mmap) -> Stopped:
    """Return the call that has stopped for a debugger.  As for `look`, there may be any bytes."""
    if page.closed:
        return Stopped()
    (since,) = struct.unpack("@d", page[_STOPPED_SINCE])
    now = time.monotonic()
    if not 0 < since <= now:
        return Stopped()
    where = page[_STOPPED_AT].rstrip(b"\0").decode(errors="replace")
    return Stopped(where, now - since, bool(page[_IS_DEBUGGED]))


def measured(page: mmap.mmap) -> CallTimes:
    """Return what the calls that have ended took.  As for `look`, the page may hold any bytes."""
    if page.closed:
        return CallTimes()
    view = memoryview(page).toreadonly()
    (known,) = view[_KNOWN].cast("Q")
    (busy,) = view[_BUSY].cast("d")
    began, running, _ = _HEAD.unpack_from(page)
    if running:
        busy += max(0.0, time.monotonic() - began)
    received, sent = view[TRAFFIC].cast("Q")
    seconds, times = view[_SECONDS].cast("d"), view[_TIMES].cast("Q")
    errors = view[_ERRORS].cast("Q")
    methods = []
    for slot in range(min(known, METHODS)):
        taken = times[BUCKETS * slot : BUCKETS * (slot + 1)].tolist()
        counts = {bucket: number for bucket, number in enumerate(taken) if number}
        if calls := sum(counts.values()):
            name = _name_in(page, slot)
            methods.append(
                MethodTimes(
                    name,
                    calls,
                    min(errors[slot], MOST),
                    _sane(seconds[slot]),
                    quantile(counts, 0.99),
                )
            )
    methods.sort(key=lambda each: -each.seconds)
    return CallTimes(_sane(busy), min(received, MOST), min(sent, MOST), tuple(methods))


def _name_in(page: mmap.mmap, slot: int) -> str:
    """Return the name of a method in the tables."""
    start = _METHODS.start + NAME_BYTES * slot
    return page[start : start + NAME_BYTES].rstrip(b"\0").decode(errors="replace")


def _sane(seconds: float) -> float:
    return min(seconds, LONGEST_S) if seconds >= 0 else 0.0  # NaN is not


def own_metrics_of(page: mmap.mmap) -> list[MetricFigures]:
    """Return the user's own metrics.  As for `look`, the page may hold any bytes."""
    return [] if page.closed else own_metrics.read(memoryview(page)[_OWN].toreadonly())


def keep_own_metrics(page: mmap.mmap | None) -> None:
    """Keep the own metrics of this process in its page from now on, or no longer."""
    own_metrics.use(None if page is None else memoryview(page)[_OWN])


def traffic_of(page: mmap.mmap) -> memoryview:
    """Return the counters of received and of sent bytes, to add to."""
    return memoryview(page)[TRAFFIC].cast("Q")


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
        self._busy = view[_BUSY].cast("d")
        self._known = view[_KNOWN].cast("Q")
        self._seconds = view[_SECONDS].cast("d")
        self._times = view[_TIMES].cast("Q")
        self._errors = view[_ERRORS].cast("Q")
        self._method = ""  # the one in the page
        self._slot = 0  # of that method
        self._names: dict[str, bytes] = {}
        known = range(min(self._known[0], METHODS))
        self._slots = {_name_in(page, slot): slot for slot in known}  # of the writer before this

    def note_streams(self, count: int) -> None:
        """Record the number of streams that have not ended."""
        self._streams[0] = min(count, _MOST)

    def _write_method(self, method: str) -> None:
        self._method = method
        self.page[_NAME] = self._name(method)
        self._slot = self._slot_of(method)

    def _name(self, method: str) -> bytes:
        if method not in self._names:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            data = method.encode(errors="replace")[:NAME_BYTES]
            self._names[method] = data.ljust(NAME_BYTES, b"\0")
        return self._names[method]

    def _slot_of(self, method: str) -> int:
        """Return the slot of a method in the tables, giving it one if there is one left."""
        slot = self._slots.get(method)
        if slot is None:
            slot = len(self._slots)
            if slot >= METHODS - 1 and method != OTHERS:
                return self._slot_of(OTHERS)
            start = _METHODS.start + NAME_BYTES * slot
            self.page[start : start + NAME_BYTES] = self._name(method)
            self._slots[method] = slot
            self._known[0] = slot + 1
        return slot

    def _note_times(self, slot: int, took: float, calls: int, errors: int) -> None:
        """Record that so many calls of a method have taken so long each, and how many failed."""
        self._times[BUCKETS * slot + bucket_of(took)] += calls
        self._seconds[slot] += took * calls
        self._errors[slot] += errors


class OneByOne(_Writer):
    """The activity of an actor that runs one call at a time."""

    def __init__(self, page: mmap.mmap) -> None:
        super().__init__(page)
        self._stands_for = self._unmeasured = 1  # calls until one is measured
        self._exact = EXACT

    def begin(self, method: str, calls: int = 1) -> int:
        """Record that a method begins to serve `calls` calls; return the number for `end`."""
        if method != self._method:
            self._write_method(method)
        self._began[0] = time.monotonic()
        self._running[0] = calls
        return calls

    def end(self, number: int, errors: int = 0) -> None:
        """Record that the calls have ended, so many of them with an error."""
        self._running[0] = 0
        if errors:
            self._measure(number, 1, errors)  # it stands for itself alone
            return
        self._unmeasured -= 1
        if not self._unmeasured:
            self._measure_for_all(number)

    def _measure(self, calls: int, stands_for: int, errors: int) -> float:
        """Measure the call that has ended; return how long it took."""
        took = time.monotonic() - self._began[0]
        self._note_times(self._slot, took, stands_for * calls, errors)
        self._busy[0] += took * stands_for
        return took

    def _measure_for_all(self, calls: int) -> None:
        """Measure the call that has ended; it stands for those since the last one."""
        took = self._measure(calls, self._stands_for, 0)
        if took > SHORT_S or self._exact:
            self._stands_for = self._unmeasured = 1
            self._exact -= self._exact > 0
        else:
            self._stands_for = self._unmeasured = 1 + _coin.getrandbits(4)


class Several(_Writer):
    """The activity of an actor that runs several calls, on threads or on an event loop."""

    def __init__(self, page: mmap.mmap) -> None:
        super().__init__(page)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calls: dict[int, tuple[str, int, float]] = {}  # oldest first
        self._total = 0
        self._busy_since = 0.0

    def begin(self, method: str, calls: int = 1) -> int:
        now = time.monotonic()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = method, calls, now
            if not self._total:
                self._busy_since = now
            self._add(calls)
        return number

    def end(self, number: int, errors: int = 0) -> None:
        """Record that the calls have ended, so many of them with an error."""
        now = time.monotonic()
        with self._lock:
            method, calls, began = self._calls.pop(number)
            self._note_times(self._slot_of(method), now - began, calls, errors)
            self._add(-calls)
            if not self._total:
                self._busy[0] += now - self._busy_since

    def _add(self, calls: int) -> None:
        self._total += calls
        if self._total:
            method, _, self._began[0] = next(iter(self._calls.values()))
            if method != self._method:
                self._write_method(method)
        self._running[0] = min(self._total, _MOST)
