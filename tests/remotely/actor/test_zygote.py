"""A failed fork is reported and leaks nothing; a zygote whose worker is gone leaves nothing."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from remotely.actor import startup, zygote
from remotely.actor.zygote import Zygote
from remotely.machine import daemons
from remotely.protocol.control import MAX_MESSAGE, Decoder, Fork, NotForked, encode

FORK = os.fork


def no_room(*_: object) -> int:
    raise BlockingIOError(errno.EAGAIN, "no room")


def a_child_that_waits() -> int:
    if (pid := FORK()) == 0:
        signal.pause()
    return pid


def descriptors_here() -> set[str]:
    """Return the descriptors here, but those of forks, which a process has that holds values."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            if "remotely-fork" not in str(fd.readlink()):
                found.add(fd.name)
    return found


@pytest.mark.parametrize(
    ("fork", "pidfd_open", "descriptors", "why"),
    [
        (no_room, os.pidfd_open, 3, "no room"),
        (a_child_that_waits, no_room, 3, "no room"),
        (a_child_that_waits, os.pidfd_open, 1, "Too many open files"),
    ],
)
def test_a_failed_fork_is_reported_and_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    fork: Callable[[], int],
    pidfd_open: Callable[[int], int],
    descriptors: int,
    why: str,
) -> None:
    worker, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with worker, theirs:
        zygote = Zygote(theirs, str(tmp_path), "a tag")
        before = descriptors_here()
        with open(os.devnull) as file:
            socket.send_fds(worker, [encode(Fork(number=0))], [file.fileno()] * descriptors)
        monkeypatch.setattr(os, "fork", fork)
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)

        assert zygote.read()

        answer = Decoder("zygote > worker").decode(worker.recv(MAX_MESSAGE))
        assert answer == NotForked(number=0, why=why)
        assert descriptors_here() <= before  # threads of other tests may end meanwhile
        for pid in zygote.children:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_a_zygote_whose_worker_is_gone_before_the_fork_leaves_nothing(tmp_path: Path) -> None:
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
    with open(os.devnull) as file:
        socket.send_fds(worker, [encode(Fork(number=0))], [file.fileno()] * 3)
    worker.close()  # while it is still importing

    _, errors = process.communicate(timeout=40)

    assert (process.returncode, errors) == (0, b"")
    assert not folder.exists()


def test_a_module_that_is_missing_is_not_told_of_and_one_that_fails_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(startup, "warm", lambda: None)
    monkeypatch.setattr(zygote, "HEAVY", ("missing_module", "broken_module"))
    zygote.preload(["missing_module", "broken_module"])
    assert capsys.readouterr().err == (
        "remotely: broken_module cannot be imported here: division by zero\n"
    )
