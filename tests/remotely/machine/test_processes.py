"""Processes are found by their tag, whatever had their pids before, and those killed are dead."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from remotely.machine.processes import TAG, birth, is_alive, kill_tagged


@pytest.fixture
def tagged() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "input()"]
    environment = {**os.environ, TAG: "worker-of-a-test:actor"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        yield process
        process.kill()


def test_a_process_with_the_pid_of_one_that_was_seen_before_is_killed(
    tagged: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = psutil.Process(tagged.pid)
    before._ident = (tagged.pid, 0.0)  # of the one that had this pid
    monkeypatch.setattr(psutil, "_pmap", {tagged.pid: before})

    assert kill_tagged("worker-of-a-test:")
    assert tagged.wait(10) == -signal.SIGKILL


def test_a_process_that_was_killed_is_not_alive(tagged: subprocess.Popen[bytes]) -> None:
    cores = os.sched_getaffinity(0)
    one = {min(cores)}
    os.sched_setaffinity(tagged.pid, one)  # it cannot end while this thread runs on its core
    os.sched_setaffinity(0, one)
    try:
        started = birth(tagged.pid)
        assert started is not None
        assert is_alive(tagged.pid, started)
        tagged.kill()
        assert not is_alive(tagged.pid, started)
    finally:
        os.sched_setaffinity(0, cores)
