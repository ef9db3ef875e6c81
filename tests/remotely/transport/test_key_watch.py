"""The watch over master.key: by its content, and never to the loss of a list that was good."""

import functools
import os
import queue
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from remotely.transport import key_files
from remotely.transport.key_watch import KeyWatch
from remotely.transport.keys import MasterKey, fresh_pair
from tests.clusters import wait_until

Watched = tuple[Path, MasterKey, "queue.Queue[MasterKey]", Callable[[], None]]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    key_files.make_keys(tmp_path / "home" / "keys")
    file = tmp_path / "home" / "keys" / "master.key"
    known, changes = key_files.load_master(file), queue.Queue[MasterKey]()
    watch = KeyWatch(file, known, changes.put)
    return file, known, changes, watch.look_now


def write(file: Path, keys: MasterKey) -> None:
    """Write a list, with the time of the one before."""
    before = file.stat()
    file.write_bytes(msgspec.json.encode(keys.to_dict()))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_list_that_differs_is_seen_whatever_its_time_says(watched: Watched) -> None:
    file, known, changes, look_now = watched
    changed = known.listing("client", (fresh_pair().public,))
    write(file, changed)
    look_now()
    assert changes.get(timeout=5) == changed


def test_a_list_that_is_damaged_missing_or_of_another_master_changes_nothing(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    file, known, changes, look_now = watched

    def is_logged(text: str) -> bool:
        return text in caplog.text

    of_another = msgspec.json.encode(MasterKey(fresh_pair()).to_dict())
    for wrong, said in ((b"{", "is damaged"), (of_another, "another master")):
        file.write_bytes(wrong)
        look_now()
        wait_until(functools.partial(is_logged, said), said)
    file.unlink()
    look_now()
    assert changes.empty()
    changed = known.listing("client", (fresh_pair().public,))
    new = file.with_name("new")
    new.touch(mode=0o600)
    new.write_bytes(msgspec.json.encode(changed.to_dict()))
    new.replace(file)
    look_now()
    assert changes.get(timeout=5) == changed
