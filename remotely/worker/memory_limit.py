"""The memory limits of actors: one that takes more than it was given is ended.

What counts is a process's own: of pages that several processes share, its part; of its arena all,
since it lends that (arena.py); and of what others lend it nothing, until it writes into it.

The kernel tells what is resident in one short line, but whose it is only by walking every page.  So
that is asked only about a process whose resident pages are above its limit, and for a twentieth of
the time at most: to walk through 16 GiB takes a tenth of a second.
"""

import contextlib
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from remotely.protocol.resources import format_bytes
from remotely.transport.loop import Loop
from remotely.values.arena import file_name
from remotely.worker.reaper import Child

CHECK_EVERY_S = (
    0.2  # while an actor with a limit is there; an actor may take a gigabyte in that time
)
REST = 20  # times as long as the walks took


class MemoryLimit:
    def __init__(self, loop: Loop, children: Iterable[Child]) -> None:
        self._loop = loop
        self._children = children
        self._walk_from = 0.0  # until then we rest
        self._is_checking = False

    def begin(self) -> None:
        """There is another child."""
        if not self._is_checking and any(c.request.resources.memory for c in self._children):
            self._is_checking = True
            self._loop.after(CHECK_EVERY_S, self._go_on)

    def _go_on(self) -> None:
        self._is_checking = False
        self._check()
        self.begin()

    def _check(self) -> None:
        begun = time.monotonic()
        for child in self._children:
            limit = child.request.resources.memory
            if not limit or not child.pid or child.why:
                continue
            with contextlib.suppress(OSError):  # it has ended
                if resident(child.pid) <= limit or begun < self._walk_from:
                    continue
                used = own(child.pid)
                if used > limit:
                    child.why = (
                        f"out of memory: it used {format_bytes(used)}, "
                        f"its limit is {format_bytes(limit)}"
                    )
                    child.kill()
        if begun >= self._walk_from:
            ended = time.monotonic()
            self._walk_from = ended + REST * (ended - begun)


def resident(pid: int) -> int:
    """Return the bytes of memory that a process has mapped and touched.

    Raises OSError if it is gone.
    """
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def own(pid: int) -> int:
    """Return how many of those are its own.  Raises OSError if it is gone."""
    counted = b"Pss:"
    total = 0
    with Path(f"/proc/{pid}/smaps").open("rb") as lines:  # see man 5 proc
        for line in lines:
            if line.startswith(counted):
                total += int(line.split()[1])
            elif line[0] in _HEXADECIMAL:  # the head of the next mapping
                counted = _counted(line, pid)
    return total << 10


_HEXADECIMAL = b"0123456789abcdef"


def _counted(head: bytes, pid: int) -> bytes:
    """Return what of a mapping is the process's own."""
    if b"/memfd:remotely-" not in head:
        return b"Pss:"
    return b"Rss:" if b"/memfd:%s " % file_name(pid).encode() in head else b"Anonymous:"
