"""What an actor is running, in a page of memory that its worker can read at any time.

A thread of the actor could not report it while a method holds the interpreter, which is when people
ask.  So the actor writes it down, and the worker reads it when asked; this costs a call 0.2 us.

    bytes   what
    0-7     when the call began that has run longest, by the machine's monotonic clock
    8-9     how many calls run
    16-79   the method of that call, in UTF-8

The reader may look between two writes; then it sees a method that has just ended.
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

SIZE = mmap.PAGESIZE
NAME_BYTES = 64
MAX_NAMES = 1000  # remembered; a caller may ask for any
_HEAD = struct.Struct("@dH")
_MOST = 0xFFFF
_NAME = slice(16, 16 + NAME_BYTES)


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
