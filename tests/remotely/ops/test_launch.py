"""A cluster inside of a script's life begins and ends whole, at whatever moment of it Ctrl-C is."""

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from remotely.ops import launch
from remotely.ops.launch import Embedded
from tests.clusters import processes, wait_until

STEPS = ("_launch", "_tell", "_first_word")


def interrupted_at(call: int, function: Callable[..., object]) -> Callable[..., object]:
    """Return the function, with Ctrl-C in place of one of its calls."""
    calls = 0

    def counted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return function(*arguments)

    return counted


@pytest.mark.parametrize(("step", "call"), [(s, c) for s in STEPS for c in (1, 2)][:-1])
def test_an_interrupt_while_it_starts_leaves_nothing_once_it_is_closed(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch, step: str, call: int
) -> None:
    cluster = Embedded()
    monkeypatch.setattr(launch, step, interrupted_at(call, getattr(launch, step)))
    with pytest.raises(KeyboardInterrupt):
        cluster.start(cpus=1, gpus=0)
    cluster.close()
    assert not cluster.folder.exists()
    assert not processes(str(cluster.folder))


def test_an_interrupt_while_it_ends_leaves_no_folder_and_the_daemons_end_by_themselves(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Embedded()
    cluster.start(cpus=1, gpus=0)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", interrupted_at(1, subprocess.Popen.wait))
        with pytest.raises(KeyboardInterrupt):
            cluster.close()
    assert not cluster.folder.exists()
    wait_until(lambda: not processes(str(cluster.folder)), "the end of the daemons")
    cluster.close()  # they are our children, to be reaped


def test_a_cluster_starts_where_stderr_is_no_file(nothing_left: None) -> None:
    cluster = Embedded()
    with contextlib.redirect_stderr(io.StringIO()):
        cluster.start(cpus=1, gpus=0)
    cluster.close()


@pytest.mark.parametrize("role", ["master", "worker"])
def test_a_daemon_that_is_told_nothing_ends_without_a_word(role: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"remotely.{role}"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
