"""A handle in a process to which it was passed by other means than a call."""

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


def test_a_handle_of_an_embedded_cluster_is_refused_with_a_hint(embedded: None) -> None:
    said = used_in_another_process(Counter())

    assert "NotConnected: this handle belongs to a cluster that another process started" in said
    assert "'remotely start'" in said


def test_a_handle_of_another_cluster_is_refused(embedded: None, started: Any) -> None:
    said = used_in_another_process(
        Counter(), REMOTELY_ADDRESS=started.address, REMOTELY_KEY=str(started.key)
    )

    assert "NotConnected: this handle belongs to the cluster at ipc://" in said
    assert f"this process uses another: tcp://{started.address}" in said


def test_a_handle_is_refused_without_a_cluster(embedded: None) -> None:
    said = used_in_another_process(Counter(), REMOTELY_LOCAL="1")

    assert "its objects live in it (REMOTELY_LOCAL)" in said
