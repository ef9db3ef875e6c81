"""Fencing: until when the actors of a worker may serve, where each of them can read it.

A worker that is cut off from its master loses its lease, and the master may then place its actors
elsewhere.  They must have ended before that, even if the worker cannot end them because it is
stopped or dying.  So each actor checks by itself, before every call.  The moment is one double in a
file that the worker writes and its actors map, on a clock that they share.  The clock goes on while
the machine is suspended, because the master counts those seconds too.

    the worker renews its lease      the moment moves to FENCE_S after the request, not after the
                                     answer: a late answer says nothing about now
    the master's machine refuses     no master is there to place actors elsewhere: it moves too
    the moment passes                no further call begins
    it has passed at two checks      the actor ends, with all that it started.  Two, because after a
                                     pause of the machine the moment has always passed.  A check is
                                     made when the moment is due, and not before: mostly it has
                                     moved by then
    no lease (embedded cluster)      it stays at infinity
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
LOOK_EVERY_S = 1.0  # once it may have passed
LOOK_AT_LEAST_EVERY_S = FENCE_S / 2  # timers stop in suspend, and the moment does not
PROBE_BEFORE_S = 6.0  # the moment, if the master is silent: does anything listen at its port?
_SIZE = 8
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the latter stops in suspend


def now() -> float:
    """Return the seconds of a clock that never stops and never goes back."""
    return time.clock_gettime(_CLOCK)


class Fence:
    """The moment, mapped into memory.  A worker creates the file; its actors open it."""

    def __init__(self, folder: Path, make: bool = False) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if make else 0)
        fd = os.open(folder / FILE, flags, 0o600)
        try:
            if make:
                os.ftruncate(fd, _SIZE)
            self._map = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self._moment = memoryview(self._map).cast("d")
        self._looks_passed = 0
        if make:
            self._moment[0] = math.inf

    @property
    def moment(self) -> float:
        """On the clock of `now`."""
        return self._moment[0]

    def move(self, moment: float) -> None:
        self._moment[0] = moment

    @property
    def has_passed(self) -> bool:
        return self._moment[0] < now()

    def look(self) -> bool:
        """Called after each `until_look_s`: return whether it has passed for good."""
        self._looks_passed = self._looks_passed + 1 if self.has_passed else 0
        return self._looks_passed > 1

    def until_look_s(self) -> float:
        """Return when to look again.  Without a lease, in an embedded cluster, that is never."""
        moment = self.moment
        if moment == math.inf:
            return math.inf
        return min(max(LOOK_EVERY_S, moment - now()), LOOK_AT_LEAST_EVERY_S)

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self._moment.release()
            self._map.close()


class WorkerFence(Fence):
    """Moves when the worker's lease is renewed, and while no master is there to end it."""

    def __init__(self, folder: Path, master: str) -> None:
        super().__init__(folder, make=True)
        self._has_lease = sockets.is_remote(master)
        self._master = _resolved(master)
        self._probe: PortProbe | None = None  # of the master's machine

    def renew(self, asked: float) -> None:
        """The master has answered what was asked then."""
        if self._has_lease and not asked + FENCE_S <= self.moment < math.inf:
            self.move(asked + FENCE_S)

    def look(self) -> bool:
        probe, self._probe = self._probe, None
        if probe is not None and probe.refused():  # no master is there
            self.move(now() + FENCE_S)
        passed = super().look()
        if not passed and self.moment < now() + PROBE_BEFORE_S:
            self._probe = PortProbe(*self._master)
        return passed

    def until_look_s(self) -> float:
        """The same, so early that there is time to ask whether a master is there."""
        if not self._has_lease:
            return math.inf
        return max(LOOK_EVERY_S, min(self.moment, now() + FENCE_S) - PROBE_BEFORE_S - now())


def _resolved(address: str) -> tuple[str, int]:
    """Return a numeric address: without a network, resolving a name would block."""
    if not sockets.is_remote(address):
        return "", 0
    name, port = parse_address(address)
    with contextlib.suppress(OSError):
        family = socket.AF_INET6 if ":" in name else socket.AF_INET
        name = str(socket.getaddrinfo(name, port, family)[0][4][0])
    return name, port
