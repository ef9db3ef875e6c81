"""A fork that fails is told, and costs nothing; a worker that is gone leaves nothing."""

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from remotely.actor.zygote import Zygote
from remotely.machine import daemons
from remotely.protocol.control import MAX_MESSAGE, Decoder, Fork, FromZygote, NotForked, encode

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
        socket.send_fds(worker, [encode(Fork(actor="a"))], [*ends, ends[1]])
        for end in ends:
            os.close(end)
        monkeypatch.setattr(os, "fork", fork)
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)

        assert zygote.read()

        told = Decoder(FromZygote).decode(worker.recv(MAX_MESSAGE))
        assert told == NotForked(actor="a", why="no room")
        assert set(os.listdir("/proc/self/fd")) == before
        for pid in zygote.children:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_without_room_for_an_actors_descriptors_the_worker_is_told(tmp_path: Path) -> None:
    worker, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with worker, theirs:
        zygote = Zygote(theirs, str(tmp_path), "a tag")
        before = set(os.listdir("/proc/self/fd"))
        with open(os.devnull) as one:
            socket.send_fds(worker, [encode(Fork(actor="a"))], [one.fileno()])

        assert zygote.read()

        told = Decoder(FromZygote).decode(worker.recv(MAX_MESSAGE))
        assert told == NotForked(actor="a", why="Too many open files")
        assert set(os.listdir("/proc/self/fd")) == before


def test_a_worker_that_is_gone_before_it_hears_of_a_birth_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "worker"
    folder.mkdir()
    worker, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            daemons.module_command(
                "remotely.actor.zygote", str(theirs.fileno()), str(folder), "a tag"
            ),
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
        )
    ends = os.pipe()
    socket.send_fds(worker, [encode(Fork(actor="a"))], [ends[0], ends[1], ends[1]])
    worker.close()  # while it is still importing
    for end in ends:
        os.close(end)

    _, errors = process.communicate(timeout=40)

    assert (process.returncode, errors) == (0, b"")
    assert not folder.exists()
