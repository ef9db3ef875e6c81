"""Embedded clusters: start and close leave nothing behind, at whatever point Ctrl-C comes."""

import contextlib
import io
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from remotely.machine.gpus import OfferedResources
from remotely.ops import daemon_process
from remotely.ops.embedded import EmbeddedCluster
from remotely.protocol.listening import Listening
from remotely.transport.keys import fresh_keys
from tests.clusters import DEADLINE_S, processes, wait_until


def interrupted_at(call: int, function: Callable[..., object]) -> Callable[..., object]:
    """Return the function with one of its calls replaced by a KeyboardInterrupt."""
    calls = 0

    def counted(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return counted


def configure(worker: "subprocess.Popen[bytes]", cluster: EmbeddedCluster) -> None:
    """Configure a worker of a cluster that has no master."""
    offer = OfferedResources(1, 0)
    _, _, key, _ = fresh_keys()
    daemon_process.configure(
        worker,
        daemon_process.worker_config(cluster.address, key, Listening(), cluster.folder, offer),
    )


@pytest.mark.parametrize(("step", "call"), [("launch", 2), ("configure", 2), ("first_line", 1)])
def test_an_interrupted_start_leaves_nothing_after_close(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch, step: str, call: int
) -> None:
    cluster = EmbeddedCluster()
    function = getattr(daemon_process, step)
    monkeypatch.setattr(daemon_process, step, interrupted_at(call, function))
    with pytest.raises(KeyboardInterrupt):
        cluster.start(OfferedResources(cpus=1, gpus=0))
    cluster.close()
    assert not cluster.folder.exists()
    assert not processes(str(cluster.folder))


def test_an_interrupted_close_leaves_no_folder_and_the_daemons_end(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = EmbeddedCluster()
    with contextlib.redirect_stderr(io.StringIO()):  # which is not a file, as in a notebook
        cluster.start(OfferedResources(cpus=1, gpus=0))
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", interrupted_at(1, subprocess.Popen.wait))
        with pytest.raises(KeyboardInterrupt):
            cluster.close()
    assert not cluster.folder.exists()
    wait_until(lambda: not processes(str(cluster.folder)), "the end of the daemons")
    cluster.close()  # reaps them


def test_a_worker_without_its_folder_exits_silently(
    nothing_left: None, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = EmbeddedCluster()  # it makes the folder when it starts
    worker = daemon_process.launch("remotely.worker", subprocess.DEVNULL, None)
    configure(worker, cluster)
    assert worker.wait(DEADLINE_S) == 0
    daemon_process.close_input(worker)
    assert capfd.readouterr().err == ""


LOSES_ITS_FOLDER = """
import shutil
from remotely.worker import worker

def lose_folder(folder, *_):
    shutil.rmtree(folder)
    (folder / "fence").touch()

worker.WorkerFence = lose_folder
worker.main()
"""


def test_a_worker_that_loses_its_folder_during_startup_leaves_no_process(
    nothing_left: None, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = EmbeddedCluster()
    cluster.folder.mkdir()
    worker = subprocess.Popen([sys.executable, "-c", LOSES_ITS_FOLDER], stdin=subprocess.PIPE)
    configure(worker, cluster)
    assert worker.wait(DEADLINE_S) == 0
    assert not processes(str(cluster.folder))
    assert not cluster.folder.exists()
    daemon_process.close_input(worker)
    assert capfd.readouterr().err == ""


def test_a_master_removes_the_folder_that_its_interrupted_script_could_not(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = EmbeddedCluster()
    monkeypatch.setattr(daemon_process, "configure", interrupted_at(2, daemon_process.configure))
    with pytest.raises(KeyboardInterrupt):
        cluster.start(OfferedResources(cpus=1, gpus=0))
    wait_until((cluster.folder / "master").exists, "the socket of the master")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", interrupted_at(1, shutil.rmtree))
        with pytest.raises(KeyboardInterrupt):
            cluster.close()
    wait_until(lambda: not cluster.folder.exists(), "the end of the folder")
    cluster.close()
