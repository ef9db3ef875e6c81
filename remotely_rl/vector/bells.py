"""Bells: how a VectorEnv and the hosts on its machine wake each other, once for each step.

Pipes, which both sides read without spinning.  The VectorEnv makes them, and a host opens its ends
as files of that process, `/proc/<pid>/fd/<fd>`: nothing has a name, and nothing is left behind.

    a pipe for each host     the VectorEnv rings: a byte that says what to do
    one pipe for all hosts   a host rings: a byte.  Which host it was, and what it has done, is in
                             the memory that they share (board.py), so no answer is ever lost

That a host has died is seen at once by its pidfd, even if a process that it started holds its pipe.

A step, in the order of its wake-ups; the numbers stand beside the lines:

    1  VectorEnv  writes the actions to the board, and PENDING as the length of the host's mail
    2  VectorEnv  rings STEP in the host's pipe, and goes on with the next host
    3  host       wakes, reads its actions, steps, and writes its rows
    4  host       writes its mail, and then its length: from here on the answer is there
    5  host       rings in the pipe of all
    6  VectorEnv  sleeps only while a host that it waits for is PENDING; any byte, or a pidfd, wakes
                  it, and then it looks at the length again
    7  VectorEnv  of mail in parts: takes one, writes PENDING, rings MORE; the host goes on at 4

A wake-up may be for a host that it has looked at already, but none is lost: 5 comes after 4.
"""

import os
import select
from typing import NamedTuple

# What the VectorEnv rings.  A step says into which of the two lists of observations to write.
STEP = (b"0", b"1")
MORE = b"m"  # the next part of the mail
PAUSE = b"p"  # for calls


class Address(NamedTuple):
    """Where a host finds its ends."""

    pid: int
    rung: int
    reply: int
    host: int


class Bell:
    """A host's ends.  Raises OSError if they cannot be opened, or the VectorEnv is gone."""

    def __init__(self, address: Address):
        path = f"/proc/{address.pid}/fd"
        self._rung = os.open(f"{path}/{address.rung}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._reply = os.open(f"{path}/{address.reply}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._rung)
            raise

    def wait(self) -> bytes:
        """Wait until it is rung; return what for, or nothing if the VectorEnv is gone."""
        return os.read(self._rung, 1)  # end of file: the last writing end is closed

    def answer(self) -> None:
        """Ring back."""
        os.write(self._reply, b"!")

    def close(self) -> None:
        os.close(self._rung)
        os.close(self._reply)


class Switchboard:
    """The VectorEnv's ends, for so many hosts."""

    def __init__(self, hosts: int):
        self._answers, self._reply = os.pipe()
        self._ring: list[int | None] = [None] * hosts
        self._process: dict[int, int] = {}  # of each host that is connected, its pidfd
        self._host_of: dict[int, int] = {}  # by pidfd
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def address(self, host: int) -> tuple[Address, int]:
        """Make a pipe for a host; return its address, and a descriptor to close.

        Close it when the host has opened its own: once that one is gone, ringing fails.
        """
        self.disconnect(host)
        rung, self._ring[host] = os.pipe()
        return Address(os.getpid(), rung, self._reply, host), rung

    def connect(self, host: int, pid: int) -> None:
        """The host has opened its ends.  Raises ProcessLookupError if it has died since."""
        pidfd = self._process[host] = os.pidfd_open(pid)
        self._host_of[pidfd] = host
        self._poll.register(pidfd, select.POLLIN)

    def ring(self, host: int, what: bytes) -> bool:
        """Wake a host; return whether it is there."""
        ring = self._ring[host]
        if ring is None:
            return False
        try:
            os.write(ring, what)  # a byte in an empty pipe: never blocks
        except BrokenPipeError:  # the host's end is closed, so its process is gone
            return False
        return True

    def wait(self) -> list[int]:
        """Wait until some hosts have answered or died; return those that have died.

        A death comes again with each call until the host is disconnected.
        """
        events = self._poll.poll()
        dead = [self._host_of[fd] for fd, _ in events if fd != self._answers]
        if len(dead) < len(events):
            os.read(self._answers, 4096)  # of all that have rung: who, is in the memory
        return dead

    def disconnect(self, host: int) -> None:
        """The host is gone, or is to go."""
        ring, self._ring[host] = self._ring[host], None
        if ring is not None:
            os.close(ring)
        pidfd = self._process.pop(host, None)
        if pidfd is not None:
            self._poll.unregister(pidfd)
            del self._host_of[pidfd]
            os.close(pidfd)

    def close(self) -> None:
        """Close all ends; hosts that wait are woken by that."""
        for host in range(len(self._ring)):
            self.disconnect(host)
        os.close(self._answers)
        os.close(self._reply)
