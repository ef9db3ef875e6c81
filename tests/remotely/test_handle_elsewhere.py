"""Handles that reach another process by other means than a call."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import remotely

ROOT = Path(__file__).resolve().parents[2]
USE = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).add(2))"


@remotely.remote_class
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, n: int) -> int:
        self.count += n
        return self.count


def used_in_another_process(handle: Any, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", USE],
        input=pickle.dumps(handle),
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        timeout=40,
        check=False,
    )
    return (done.stdout + done.stderr).decode()


def test_a_handle_of_a_started_cluster_connects_its_new_process(
    nothing_left: None, started: Any
) -> None:
    remotely.connect(started.address, key=started.key)
    counter = Counter()
    counter.add(1)

    assert used_in_another_process(counter, REMOTELY_KEY=str(started.key)) == "3\n"
    assert counter.count == 3


def test_a_handle_is_refused_by_a_process_without_its_cluster(embedded: None, started: Any) -> None:
    counter = Counter()

    error = used_in_another_process(counter)
    assert "NotConnected: this handle belongs to a cluster that another process started" in error
    assert "'remotely start'" in error

    other = {"REMOTELY_ADDRESS": started.address, "REMOTELY_KEY": str(started.key)}
    error = used_in_another_process(counter, **other)
    assert "NotConnected: this handle belongs to the cluster at ipc://" in error
    assert f"this process uses another: tcp://{started.address}" in error

    error = used_in_another_process(counter, REMOTELY_LOCAL="1")
    assert "its objects live in it (REMOTELY_LOCAL)" in error
