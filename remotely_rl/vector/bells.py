"""Bells: pipes by which a VectorEnv and the hosts on its machine wake each other in every step.

Both sides block in `read` and `poll`, without spinning.  The VectorEnv makes the pipes; a host
opens its ends as `/proc/<pid>/fd/<fd>` of that process, so no name is left behind.

    one pipe per host        the VectorEnv rings with a byte that is the command
    one pipe for all hosts   a host rings with any byte.  Its answer is in the shared memory
                             (board.py), so no answer is ever lost

A pidfd reports the death of a host immediately, even if a child of the host holds its pipe open.

The wake-ups of a step, in order; comments in the code cite the numbers:

    1  VectorEnv  writes the actions to the board, and PENDING as the length of the host's mail
    2  VectorEnv  rings STEP in the host's pipe, and continues with the next host
    3  host       wakes, reads its actions, steps, and writes its rows
    4  host       writes its mail, then the mail's length: this publishes the answer
    5  host       rings in the common pipe
    6  VectorEnv  sleeps only while a host that it waits for is PENDING; any byte or pidfd wakes it,
                  and it reads the length again
    7  VectorEnv  if the mail comes in parts: takes one, writes PENDING, rings MORE; continue at 4

A wake-up may be stale, but none is lost, because 5 comes after 4.
"""

import os
import select
from typing import NamedTuple

# Commands.  STEP has the index of the list of observations to write, of two.
STEP = (b"0", b"1")
MORE = b"m"  # the next part of the mail
PAUSE = b"p"  # return from `serve`, to receive calls


class BellAddress(NamedTuple):
    """Process and file descriptors from which a host opens its ends."""

    pid: int
    rung: int
    reply: int
    host: int


class Bell:
    """The ends of a host.  Raises OSError if they cannot be opened, or the VectorEnv is gone."""

    def __init__(self, address: BellAddress):
        path = f"/proc/{address.pid}/fd"
        self._rung = os.open(f"{path}/{address.rung}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._reply = os.open(f"{path}/{address.reply}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self._rung)
            raise

    def wait(self) -> bytes:
        """Wait for a command and return it, or b"" if the VectorEnv is gone."""
        return os.read(self._rung, 1)  # end of file: the last write end is closed

    def answer(self) -> None:
        os.write(self._reply, b"!")

    def close(self) -> None:
        os.close(self._rung)
        os.close(self._reply)


class Switchboard:
    """The ends of the VectorEnv."""

    def __init__(self, hosts: int):
        self._answers, self._reply = os.pipe()
        self._ring: list[int | None] = [None] * hosts
        self._pidfds: dict[int, int] = {}  # by host, of connected hosts
        self._hosts: dict[int, int] = {}  # by pidfd
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def address(self, host: int) -> tuple[BellAddress, int]:
        """Make a pipe for a host; return its address, and its read end in this process.

        Close the read end once the host has opened its own, so that `ring` fails when the host is
        gone.
        """
        self.disconnect(host)
        rung, self._ring[host] = os.pipe()
        return BellAddress(os.getpid(), rung, self._reply, host), rung

    def connect(self, host: int, pid: int) -> None:
        """Watch a host that has opened its ends.  Raises ProcessLookupError if it has died."""
        pidfd = self._pidfds[host] = os.pidfd_open(pid)
        self._hosts[pidfd] = host
        self._poll.register(pidfd, select.POLLIN)

    def ring(self, host: int, command: bytes) -> bool:
        """Wake a host; return false if it is gone."""
        ring = self._ring[host]
        if ring is None:
            return False
        try:
            os.write(ring, command)  # a byte in an empty pipe: never blocks
        except BrokenPipeError:  # the host's process is gone
            return False
        return True

    def wait(self) -> list[int]:
        """Wait until a host has answered or died; return the hosts that have died.

        Every call returns a dead host again until it is disconnected.
        """
        events = self._poll.poll()
        dead = [self._hosts[fd] for fd, _ in events if fd != self._answers]
        if len(dead) < len(events):
            os.read(self._answers, 4096)  # the answers themselves are in the shared memory
        return dead

    def disconnect(self, host: int) -> None:
        """Close the pipe and the pidfd of a host."""
        ring, self._ring[host] = self._ring[host], None
        if ring is not None:
            os.close(ring)
        pidfd = self._pidfds.pop(host, None)
        if pidfd is not None:
            self._poll.unregister(pidfd)
            del self._hosts[pidfd]
            os.close(pidfd)

    def close(self) -> None:
        """Close all ends, which wakes waiting hosts."""
        for host in range(len(self._ring)):
            self.disconnect(host)
        os.close(self._answers)
        os.close(self._reply)
