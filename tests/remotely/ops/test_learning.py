"""A master learns what lives wherever an earlier master of its keys may have left workers."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remotely.machine import folders
from remotely.ops import cluster
from remotely.ops.cluster import Network, OfferedResources
from remotely.transport import key_files
from tests.clusters import free_port

PORT = free_port()
learned: list[bool] = []


@contextlib.contextmanager
def no_daemon(stem: str, *_: Any) -> Iterator[Any]:
    class NoDaemon:
        def configure_master(self, address: str, key: Any, key_file: Path, learns: bool) -> None:
            learned.append(learns)

        def configure_worker(self, *_: Any, **__: Any) -> None:
            pass

    yield NoDaemon()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REMOTELY_HOME", str(tmp_path))
    monkeypatch.setattr(cluster, "PersistentDaemon", no_daemon)
    learned.clear()
    return tmp_path


def starts() -> bool:
    """Start a master; return whether it learns."""
    cluster.start(Network(), PORT, OfferedResources())
    return learned.pop()


def test_the_first_master_of_its_keys_has_nothing_to_learn(home: Path) -> None:
    assert not starts()


def test_a_master_learns_if_its_predecessor_was_killed_with_its_container(home: Path) -> None:
    """All that a container has on its own disk is gone with it, but the keys come back."""
    starts()
    shutil.rmtree(home / "run")
    assert starts()


def test_a_master_has_nothing_to_learn_after_one_that_ended_in_order(home: Path) -> None:
    starts()
    key_files.note_ended(folders.key_folder() / "master.key", PORT)
    assert not starts()
    assert starts()
