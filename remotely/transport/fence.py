"""Fencing: the deadline until which a worker's actors may serve, in memory that they all share.

A worker that is cut off from its master loses its lease, and the master may then place its actors
elsewhere.  They must end before that, even if the worker cannot end them because it is stopped or
dying.  So each actor checks the deadline itself, before every call.  The deadline is one double in
a file that the worker writes and its actors map, on a clock that they share.  The clock goes on
while the machine is suspended, because the master counts that time too.

    the worker renews its lease      the deadline moves to FENCE_S after the request, not after the
                                     reply: a late reply says nothing about now
    the master's machine refuses     no master is there to place actors elsewhere: it moves too
    the deadline passes              no further call begins
    it has passed at two checks      the actor ends, with all processes that it started.  Two,
                                     because after a pause of the machine it has always passed.  A
                                     check is made when the deadline is due, not before: mostly it
                                     has moved by then
    no lease (embedded cluster)      the deadline stays at infinity
"""

import contextlib
import math
import mmap
import os
import socket
import time
from pathlib import Path

from remotely.protocol.address import parse_address
from remotely.protocol.lease import FENCE_S
from remotely.transport import sockets
from remotely.transport.port_probe import PortProbe

FILE = "fence"
LOOK_EVERY_S = 1.0  # once the deadline may have passed
LOOK_AT_LEAST_EVERY_S = FENCE_S / 2  # timers stop in suspend, the deadline does not
PROBE_BEFORE_S = 6.0  # before the deadline, a worker probes the port of a silent master
_SIZE = 8
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the latter stops in suspend


def now() -> float:
    """Return the time of a clock that never stops and never goes back."""
    return time.clock_gettime(_CLOCK)


class Fence:
    """The deadline, mapped into memory.  A worker creates the file; its actors open it."""

    def __init__(self, folder: Path, make: bool = False) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if make else 0)
        fd = os.open(folder / FILE, flags, 0o600)
        try:
            if make:
                os.ftruncate(fd, _SIZE)
            self._map = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self._deadline = memoryview(self._map).cast("d")
        self._looks_passed = 0
        if make:
            self._deadline[0] = math.inf

    @property
    def deadline(self) -> float:
        """The deadline, on the clock of `now`."""
        return self._deadline[0]

    def move(self, deadline: float) -> None:
        self._deadline[0] = deadline

    @property
    def has_passed(self) -> bool:
        return self._deadline[0] < now()

    def look(self) -> bool:
        """Return whether the deadline had passed at two checks; call after each `until_look_s`."""
        self._looks_passed = self._looks_passed + 1 if self.has_passed else 0
        return self._looks_passed > 1

    def until_look_s(self) -> float:
        """Return the time until the next check; infinity without a lease (embedded cluster)."""
        deadline = self.deadline
        if deadline == math.inf:
            return math.inf
        return min(max(LOOK_EVERY_S, deadline - now()), LOOK_AT_LEAST_EVERY_S)

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self._deadline.release()
            self._map.close()


class WorkerFence(Fence):
    """The fence of a worker: moves when its lease is renewed, and while there is no master."""

    def __init__(self, folder: Path, master: str) -> None:
        super().__init__(folder, make=True)
        self._has_lease = sockets.is_remote(master)
        self._master = _resolved(master)
        self._probe: PortProbe | None = None  # of the master's port

    def renew(self, asked: float) -> None:
        """Renew the lease: the master has replied to a request that was sent at `asked`."""
        if self._has_lease and not asked + FENCE_S <= self.deadline < math.inf:
            self.move(asked + FENCE_S)

    def look(self) -> bool:
        probe, self._probe = self._probe, None
        if probe is not None and probe.refused():  # there is no master
            self.move(now() + FENCE_S)
        passed = super().look()
        if not passed and self.deadline < now() + PROBE_BEFORE_S:
            self._probe = PortProbe(*self._master)
        return passed

    def until_look_s(self) -> float:
        """Like `Fence.until_look_s`, but early enough to probe the master's port."""
        if not self._has_lease:
            return math.inf
        return max(LOOK_EVERY_S, min(self.deadline, now() + FENCE_S) - PROBE_BEFORE_S - now())


def _resolved(address: str) -> tuple[str, int]:
    """Return a numeric address, because resolving a name blocks if there is no network."""
    if not sockets.is_remote(address):
        return "", 0
    name, port = parse_address(address)
    with contextlib.suppress(OSError):
        family = socket.AF_INET6 if ":" in name else socket.AF_INET
        name = str(socket.getaddrinfo(name, port, family)[0][4][0])
    return name, port
