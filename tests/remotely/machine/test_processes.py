"""Processes that are found by their tag are killed, whatever had their pids before."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from remotely.machine.processes import TAG, kill_tagged


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
