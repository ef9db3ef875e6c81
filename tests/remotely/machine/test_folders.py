"""Folders for sockets have short paths, whatever TMPDIR is."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import remotely
from remotely.errors import RemotelyError
from remotely.machine import file_lock, folders, guest_folder, processes
from tests.remotely.counter import Counter


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Set TMPDIR to a long path, as Slurm does; yield the folder that is used instead."""
    with tempfile.TemporaryDirectory() as short:
        far = Path(short) / ("job" * 30)
        far.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(far))
        monkeypatch.setattr(folders, "ELSEWHERE", (str(Path(short) / "no"), short))
        yield Path(short)
        assert [file.name for file in Path(short).rglob("*")] == [far.name]


def test_a_script_runs_although_tmpdir_is_too_long_for_a_socket(
    elsewhere: Path, nothing_left: None
) -> None:
    counter = Counter()
    assert counter.add() == 1
    (folder,) = elsewhere.glob("remotely-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with pytest.raises(BlockingIOError):  # its worker has locked it
        file_lock.hold(folder)
    remotely.shutdown()


def test_folders_of_daemons_and_guests_are_elsewhere_too_and_private(
    elsewhere: Path,
) -> None:
    with guest_folder.guest_folder() as made:
        assert made.parent == elsewhere
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made = folders.new_temporary("remotely-")
    assert made.parent == elsewhere
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.rmdir()


def test_a_path_of_the_maximum_length_is_used_and_one_byte_more_is_not(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nbytes, is_used in ((folders.LONGEST_BYTES, True), (folders.LONGEST_BYTES + 1, False)):
        place = elsewhere / ("x" * (nbytes - len(os.fsencode(elsewhere)) - 1))
        place.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        assert (folders.temporary() == place) is is_used
        place.rmdir()


def test_without_a_short_path_the_error_says_what_to_set(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "ELSEWHERE", ("/proc/none",))
    with pytest.raises(RemotelyError, match=r"TMPDIR is .*jobjob.* Set TMPDIR to a folder"):
        remotely.connect()


def test_a_folder_in_use_is_locked_against_those_that_clean_by_age(tmp_path: Path) -> None:
    lock = file_lock.hold(tmp_path)
    with pytest.raises(BlockingIOError):  # as systemd-tmpfiles tries it
        file_lock.hold(tmp_path)
    os.close(lock)
    os.close(file_lock.hold(tmp_path))


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", flock)
    with (
        pytest.raises(RemotelyError, match=r"without locks .* Set REMOTELY_HOME"),
        file_lock.locked(tmp_path / "lock"),
    ):
        pass


def test_an_empty_tag_is_refused_since_every_process_has_it() -> None:
    with pytest.raises(ValueError, match="empty"):
        processes.kill_tagged("")


def test_shared_memory_is_used_where_all_that_python_knows_is_read_only(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_usable() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(tempfile, "gettempdir", none_usable)
    monkeypatch.setenv("TMPDIR", "/nowhere")
    assert folders.temporary() == elsewhere


@pytest.fixture
def homeless(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user with neither HOME nor an entry in the list of users; yield the temporary folder."""

    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("REMOTELY_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    folders._without_home.cache_clear()
    yield elsewhere
    monkeypatch.undo()
    folders._without_home.cache_clear()
    (elsewhere / f"remotely-home-{os.getuid()}").rmdir()


def test_a_user_without_a_home_gets_a_private_folder_and_is_told_once(
    homeless: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert folders.key_folder().parent.parent == homeless
    assert stat.S_IMODE(folders.home().stat().st_mode) == 0o700
    (record,) = caplog.records
    assert "this user has no home" in record.getMessage()


def test_a_folder_that_others_can_read_is_no_home(homeless: Path) -> None:
    (homeless / f"remotely-home-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(RemotelyError, match="Set REMOTELY_HOME"):
        folders.home()
