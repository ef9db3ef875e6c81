"""What the daemons of this machine leave in its home, and what they do not."""

from pathlib import Path

import pytest

from remotely.machine import pid_file

PORT = 8010


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REMOTELY_HOME", str(tmp_path / "home"))


def fail_to_start(log: str = "") -> None:
    with pid_file.starting(PORT):
        if log:
            (pid_file.folder_of(PORT) / "master.log").write_text(log)
        raise OSError("the port is in use")


def test_a_cluster_that_could_not_start_leaves_no_folder() -> None:
    with pytest.raises(OSError, match="in use"):
        fail_to_start()
    assert not pid_file.folder_of(PORT).exists()


def test_what_it_wrote_before_it_failed_is_kept() -> None:
    with pytest.raises(OSError, match="in use"):
        fail_to_start(log="why")
    assert (pid_file.folder_of(PORT) / "master.log").read_text() == "why"


def test_only_the_user_can_look_into_the_folder_of_a_cluster() -> None:
    with pid_file.starting(PORT):
        folder = pid_file.folder_of(PORT)
    for made in (folder, *folder.parents[:3]):
        assert made.stat().st_mode & 0o777 == 0o700
