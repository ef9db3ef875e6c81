"""The rendezvous of ranks in a folder."""

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from remotely.errors import RemotelyError
from remotely.machine import processes, this_machine
from remotely.ops import rendezvous as module
from remotely.ops.rendezvous import Note, Pause, Rendezvous, missing, remove
from remotely.transport import key_files


def test_rank_0_and_the_others_read_each_others_files(tmp_path: Path) -> None:
    first, second = (Rendezvous(tmp_path / "jobs" / "9", rank) for rank in (0, 1))
    assert second.invitation() is None
    second.note("came")  # without a folder yet, this is no error
    first.open()
    assert (first.folder.stat().st_mode & 0o777, second.invitation()) == (0o700, None)
    first.invite(["10.0.0.1:9000"])
    found = second.invitation()
    assert found is not None
    assert found.addresses == ["10.0.0.1:9000"]
    second.note("came", "no reply")
    assert first.notes()[1].why == "no reply"
    second.note("joined")
    assert first.notes()[1].state == "joined"
    assert {file.stat().st_mode & 0o077 for file in first.folder.glob("*.key")} == {0}
    assert not list(first.folder.glob(".*.json.*"))
    assert second.is_open()


def test_notes_of_ranks_that_have_joined_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (Rendezvous(tmp_path / "9", rank) for rank in range(3))
    first.open()
    second.note("joined")
    third.note("came")
    notes = first.notes()
    third.note("joined")
    reads: list[str] = []
    read = Path.read_bytes

    def spy(self: Path) -> bytes:
        reads.append(self.name)
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", spy)
    notes = first.notes(notes)
    assert {rank: note.state for rank, note in notes.items()} == {1: "joined", 2: "joined"}
    assert reads == ["rank-2.json"]


def test_a_look_at_the_folder_of_a_job_is_rarer_while_nothing_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    pause = Pause()
    for is_new in (False, False, False, False, False, False, True, False):
        pause.wait(is_new)
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8, 0.8, 0.05, 0.1]


def test_each_run_of_a_job_has_its_own_keys(tmp_path: Path) -> None:
    rendezvous = Rendezvous(tmp_path / "9", 0)
    rendezvous.open()
    before = key_files.load_member(rendezvous.folder / "worker.key")
    rendezvous.open()
    assert key_files.load_member(rendezvous.folder / "worker.key") != before


def test_a_second_job_of_the_same_name_is_refused_on_this_machine_and_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Rendezvous(tmp_path / "9", 0)
    first.open()
    with pytest.raises(RemotelyError, match=f"belongs to pid {os.getpid()}.*--job"):
        Rendezvous(tmp_path / "9", 0).check()
    assert {file.name for file in tmp_path.iterdir()} == {"9"}
    monkeypatch.setattr(this_machine, "machine_name", lambda: "node2")
    monkeypatch.setattr(module, "RANK_ANSWER_S", 0.2)
    second = Rendezvous(tmp_path / "9", 0)
    with pytest.raises(RemotelyError, match="runs already"):
        second.check()  # the first is about to start its master
    with socket.create_server(("127.0.0.1", 0)) as master:
        first.invite([f"127.0.0.1:{master.getsockname()[1]}"])
        with pytest.raises(RemotelyError, match=r"runs already.*--job"):
            second.check()
    second.check()  # its address no longer answers: its machine was lost


def test_one_of_two_jobs_that_start_at_the_same_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Rendezvous(tmp_path / "9", 0)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    second = Rendezvous(tmp_path / "9", 0)
    make_keys = key_files.make_keys

    def meanwhile(folder: Path) -> None:
        monkeypatch.undo()
        make_keys(folder)
        first.open()

    monkeypatch.setattr(key_files, "make_keys", meanwhile)
    with pytest.raises(RemotelyError, match="runs already"):
        second.open()
    second.close()
    assert (first.folder / "client.key").exists()
    assert {file.name for file in tmp_path.iterdir()} == {"9"}


def test_a_run_only_removes_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Rendezvous(tmp_path / "9", 0)
    first.open()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    second = Rendezvous(tmp_path / "9", 0)
    second.open()
    first.close()
    assert (second.folder / "client.key").exists()
    second.invite(["10.0.0.1:9000"])
    first.close()
    assert second.invitation() is not None
    second.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_renamed_is_still_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_stale(self: Path, to: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self))

    rendezvous = Rendezvous(tmp_path / "9", 0)
    rendezvous.open()
    monkeypatch.setattr(Path, "rename", is_stale)
    rendezvous.close()
    assert not list(tmp_path.glob("*/*.key"))


def test_the_folder_of_a_killed_run_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous = Rendezvous(tmp_path / "9", 0)
    rendezvous.open()
    rendezvous.invite([])
    Rendezvous(tmp_path / "9", 3).note("joined")
    monkeypatch.setattr(processes, "is_alive", lambda pid, started: False)
    rendezvous.check()
    rendezvous.open()
    assert (rendezvous.invitation(), rendezvous.notes()) == (None, {})


def test_a_truncated_file_is_ignored(tmp_path: Path) -> None:
    rendezvous = Rendezvous(tmp_path, 0)
    (tmp_path / "address.json").write_text('{"addresses": ["10.')
    (tmp_path / "rank-1.json").write_text("{")
    assert (rendezvous.invitation(), rendezvous.notes()) == (None, {})


def test_missing_ranks_are_named_with_the_known_reasons() -> None:
    notes = {
        1: Note(rank=1, machine="node1", state="joined"),
        2: Note(rank=2, machine="node2", state="came", why="a firewall drops it"),
        4: Note(rank=4, machine="node4", state="came", why=""),
    }
    told = missing(6, notes, Path("/shared/jobs/9"), 60, "srun")
    assert told.startswith("ranks 2, 3, 4 and 5 of 6 did not join within 60 s")
    assert "ranks 3 and 5 left no note: srun has not started them" in told
    assert "/shared/jobs is not on a disk that their machines share" in told
    assert "rank 2 is on node2, but a firewall drops it" in told
    assert told.endswith("rank 4 is on node4")
    assert "no note" not in missing(3, notes, Path("/shared/jobs/9"), 60, "srun")


def test_ranks_that_cannot_join_are_named_before_missing_ones() -> None:
    notes = {
        1: Note(rank=1, machine="node1", state="came"),
        2: Note(rank=2, machine="node2", state="failed", why="its ports are taken"),
    }
    assert missing(4, notes, Path("/shared/jobs/9"), 60, "srun") == (
        "rank 2 of 4 could not join; rank 3 left no note so far; rank 1 is on node1; "
        "rank 2 is on node2, but its ports are taken"
    )


def test_a_folder_is_removed_while_other_ranks_write_into_it(tmp_path: Path) -> None:
    folder = tmp_path / "9"
    Rendezvous(folder, 0).open()
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            Rendezvous(folder, 1).note("came")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            remove(folder)
            assert not folder.exists()
            folder.mkdir()
        remove(folder)
    finally:
        stop.set()
        writer.join()
    assert list(tmp_path.iterdir()) == []
