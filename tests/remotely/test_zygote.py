"""A fork that fails is told, and costs nothing."""

import errno
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from remotely.control import MAX_MESSAGE, Fork, FromZygote, NotForked, Reader, write
from remotely.zygote import Zygote

FORK = os.fork


def no_room(*_: object) -> int:
    raise BlockingIOError(errno.EAGAIN, "no room")


def a_child_that_waits() -> int:
    if (pid := FORK()) == 0:
        signal.pause()
    return pid


@pytest.mark.parametrize(
    ("fork", "pidfd_open"), [(no_room, os.pidfd_open), (a_child_that_waits, no_room)]
)
def test_without_room_for_a_process_the_worker_is_told_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fork: Callable[[], int],
    pidfd_open: Callable[[int], int],
) -> None:
    worker, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with worker, theirs:
        zygote = Zygote(theirs, str(tmp_path), "a tag")
        before = set(os.listdir("/proc/self/fd"))
        ends = os.pipe()
        socket.send_fds(worker, [write(Fork(actor="a"))], ends)
        for end in ends:
            os.close(end)
        monkeypatch.setattr(os, "fork", fork)
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)

        assert zygote._read()

        told = Reader(FromZygote).read(worker.recv(MAX_MESSAGE))
        assert told == NotForked(actor="a", why="no room")
        assert set(os.listdir("/proc/self/fd")) == before
        for pid in zygote._children:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
