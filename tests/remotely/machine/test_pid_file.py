"""The files of daemons in ~/.remotely/run: when they are written, renamed and removed."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remotely.machine import pid_file, processes, this_machine

PORT = 8010


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REMOTELY_HOME", str(tmp_path / "home"))


def fail_to_start(log: str = "") -> None:
    with pid_file.starting(PORT):
        if log:
            (pid_file.folder_of(PORT) / "master.log").write_text(log)
        raise OSError("the port is in use")


def test_a_failed_start_leaves_nothing_but_its_log() -> None:
    with pytest.raises(OSError, match="in use"):
        fail_to_start()
    assert not pid_file.folder_of(PORT).exists()
    with pytest.raises(OSError, match="in use"):
        fail_to_start(log="why")
    assert (pid_file.folder_of(PORT) / "master.log").read_text() == "why"


def test_the_folder_of_a_cluster_is_private() -> None:
    with pid_file.starting(PORT):
        folder = pid_file.folder_of(PORT)
    for made in (folder, *folder.parents[:3]):
        assert made.stat().st_mode & 0o777 == 0o700


def test_a_daemon_that_leaves_does_not_remove_the_folder_that_another_enters() -> None:
    with pid_file.entering(PORT) as folder:
        (folder / "worker.log").touch()
        pid_file.leave(folder / "joined-a.json")
        assert (folder / "worker.log").exists()
    pid_file.leave(folder / "joined-a.json")
    assert not folder.exists()


def write_worker(name: str, **fields: Any) -> None:
    """Write the file of a worker that was killed."""
    worker = pid_file.Running(
        role="joined",
        address="",
        cluster="ours",
        pid=1,
        started=-1.0,
        log="",
        worker=name,
        nonce=f"nonce of {name}",
    )
    file = pid_file.make_folder(PORT) / f"joined-{name}.json"
    pid_file.write(file, msgspec.structs.replace(worker, **fields))


def predecessors() -> list[str]:
    with pid_file.predecessors(pid_file.folder_of(PORT), "ours") as killed:
        return [worker.nonce for worker in killed]


def test_a_worker_learns_once_of_killed_predecessors_whose_processes_are_ended_first() -> None:
    me = os.getpid()
    write_worker("killed")
    write_worker("of-another-cluster", cluster="another")
    write_worker("alive", pid=me, started=processes.birth(me))
    with subprocess.Popen(["sleep", "60"], env={processes.TAG: "killed:an actor"}) as actor:
        with (
            pytest.raises(ZeroDivisionError),
            pid_file.predecessors(pid_file.folder_of(PORT), "ours"),
        ):
            raise ZeroDivisionError  # the new worker fails to start
        assert actor.wait(40) < 0
    assert predecessors() == ["nonce of killed"]
    assert predecessors() == []
    assert [daemon.worker for daemon in pid_file.running(PORT)] == ["alive"]


def test_a_killed_worker_is_remembered_until_the_next_runs_or_the_cluster_is_stopped() -> None:
    write_worker("killed")
    write_worker("starting", pid=os.getpid(), started=processes.birth(os.getpid()))
    folder = pid_file.folder_of(PORT)
    (folder / "worker.killed").touch()
    pid_file.leave(folder / "joined-starting.json")  # the master refused it
    assert predecessors() == ["nonce of killed"]

    pid_file.forget_all(folder)
    assert not folder.exists()


def test_a_killed_worker_with_processes_left_is_no_predecessor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_worker("killed")
    monkeypatch.setattr(pid_file, "KILLED_GONE_S", 0.0)
    monkeypatch.setattr(processes, "kill_tagged", lambda prefix: True)  # they do not end
    assert predecessors() == []


def test_a_pid_means_the_same_process_in_another_mount_namespace() -> None:
    """`ip netns exec` creates a mount namespace for each command."""
    script = "from remotely.machine.this_machine import pid_space; print(pid_space())"
    command = ["unshare", "--mount", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine allows no mount namespaces: {done.stderr}")
    assert done.stdout.strip() == this_machine.pid_space()


# --- where pids mean the same ---------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a function after which this process seems to be in another pid namespace."""

    def move() -> None:
        monkeypatch.setattr(this_machine, "pid_space", lambda: "another")
        pid_file._here.cache_clear()

    yield move
    monkeypatch.undo()
    pid_file._here.cache_clear()


def test_what_another_pid_namespace_has_left_is_neither_read_nor_removed(
    elsewhere: Callable[[], None], tmp_path: Path
) -> None:
    """As outside a container with the same home: its pids say nothing here."""
    folder = tmp_path / "sockets"
    folder.mkdir()
    write_worker("theirs", folder=str(folder))
    theirs = list(pid_file.folder_of(PORT).iterdir())
    elsewhere()
    assert pid_file.running(PORT) == []
    with pid_file.starting(PORT):
        assert predecessors() == []
    pid_file.forget_all(pid_file.folder_of(PORT))
    assert folder.exists()
    assert all(file.exists() for file in theirs)


def test_to_read_what_runs_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    write_worker("killed", folder=str(folder))
    before = list(pid_file.folder_of(PORT).iterdir())
    assert pid_file.running(PORT) == []
    assert pid_file.ports() == []
    assert list(pid_file.folder_of(PORT).iterdir()) == before
    assert folder.exists()
    with pid_file.starting(PORT):
        assert not folder.exists()


def test_a_host_may_be_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.getpid()
    write_worker("alive", pid=me, started=processes.birth(me))
    monkeypatch.setattr(this_machine, "machine_name", lambda: "renamed")
    assert [daemon.worker for daemon in pid_file.running(PORT)] == ["alive"]
