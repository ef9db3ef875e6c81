"""The memory of actors: what each uses, and the end of one that exceeds its limit.

Only memory of the process's own counts: its proportional share (PSS) of pages that several
processes map; all of its arena, which it lends to others (arena.py); and nothing of what others
lend it, until it writes into it.

The kernel reports the resident size in one short line, but computes shares by walking every page,
which takes 0.1 s for 16 GiB.  So the worker reads the shares only of processes whose resident size
is above their limit, and those that somebody asks about, and spends at most a twentieth of its time
on that.  In between, what a process uses is what it used then, and what it has allocated since.
Before its first walk, that begins at its share of the pages of the zygote from which it was forked.
"""

import contextlib
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

from remotely.protocol.resources import format_bytes
from remotely.transport.loop import Loop
from remotely.values.arena import file_name
from remotely.worker.reaper import Child

CHECK_EVERY_S = 0.2  # while any actor has a limit; an actor may allocate a GiB in that time
PAUSE = 20  # times the duration of the last walks
BLOCK_BYTES = 512  # man 2 stat, st_blocks


class _Walk(NamedTuple):
    at: float
    own: int
    anonymous: int  # bytes, at that time


class OwnMemory:
    """What the processes of actors use, as their limits count it."""

    def __init__(self) -> None:
        self._walks: dict[int, _Walk] = {}  # by pid
        self._next_walk = 0.0  # for those who ask

    def walk(self, pid: int) -> int:
        """Return how many bytes count as its own.  Raises OSError if it is gone."""
        before, used = anonymous(pid), own(pid)
        self._walks[pid] = _Walk(time.monotonic(), used, before)
        return used

    def walk_oldest(self, pids: Iterable[int], within_s: float) -> None:
        """Walk those of these processes whose figures are the oldest, as far as time allows."""
        living = {*pids}
        self._walks = {pid: walk for pid, walk in self._walks.items() if pid in living}
        begun = time.monotonic()
        if begun < self._next_walk:
            return
        for pid in sorted(living, key=lambda pid: self._walks[pid].at if pid in self._walks else 0):
            with contextlib.suppress(OSError):  # it has ended
                self.walk(pid)
            if time.monotonic() > begun + within_s:
                break
        ended = time.monotonic()
        self._next_walk = ended + PAUSE * (ended - begun)

    def of(self, pid: int) -> int:
        """Return about how many bytes count as its own, without a walk; 0 if it is gone."""
        with contextlib.suppress(OSError, psutil.Error):
            walk = self._walks.get(pid)
            if walk is None:
                parent = psutil.Process(pid).ppid()
                shared = 0 if parent == os.getpid() else anonymous(parent)
                share = shared // (len(self._walks) + 1)
                walk = self._walks[pid] = _Walk(0.0, share, shared)
            return max(0, walk.own + anonymous(pid) - walk.anonymous)
        return 0


class MemoryLimit:
    def __init__(self, loop: Loop, children: Iterable[Child], memory: OwnMemory) -> None:
        self._loop = loop
        self._children = children
        self._memory = memory
        self._next_walk = 0.0
        self._is_checking = False

    def begin(self) -> None:
        """Start to check if any child has a limit; to be called for each new child."""
        if not self._is_checking and any(c.request.resources.memory for c in self._children):
            self._is_checking = True
            self._loop.after(CHECK_EVERY_S, self._check_again)

    def _check_again(self) -> None:
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
                if resident(child.pid) <= limit or begun < self._next_walk:
                    continue
                used = self._memory.walk(child.pid)
                if used > limit:
                    child.why = (
                        f"out of memory: it used {format_bytes(used)}, "
                        f"its limit is {format_bytes(limit)}"
                    )
                    child.kill()
        if begun >= self._next_walk:
            ended = time.monotonic()
            self._next_walk = ended + PAUSE * (ended - begun)


def resident(pid: int) -> int:
    """Return the resident size of a process in bytes.  Raises OSError if it is gone."""
    return _sizes(pid)[0]


def anonymous(pid: int) -> int:
    """Return the part of that which is of no file.  Raises OSError if it is gone."""
    there, of_files = _sizes(pid)
    return there - of_files


def _sizes(pid: int) -> tuple[int, int]:
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return int(words[1]) * resource.getpagesize(), int(words[2]) * resource.getpagesize()


def own(pid: int) -> int:
    """Return how many bytes count as its own.  Raises OSError if it is gone."""
    counted = b"Pss:"
    total = _arena_of(pid) >> 10
    with Path(f"/proc/{pid}/smaps").open("rb") as lines:  # see man 5 proc
        for line in lines:
            if line.startswith(counted):
                total += int(line.split()[1])
            elif line[0] in _HEXADECIMAL:  # the header of the next mapping
                counted = _counted(line)
    return total << 10


_HEXADECIMAL = b"0123456789abcdef"


def _counted(head: bytes) -> bytes:
    """Return the field of smaps that counts for a mapping with this header."""
    return b"Anonymous:" if b"/memfd:remotely-" in head else b"Pss:"


def _arena_of(pid: int) -> int:
    """Return the allocated size of its arena, which it may have mapped twice (borrowing.py)."""
    wanted = f"/memfd:{file_name(pid)} (deleted)"
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(fd.readlink()) == wanted:
                return fd.stat().st_blocks * BLOCK_BYTES
    return 0
