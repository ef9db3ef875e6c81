"""Key files: created once, private to their owner, and refused if they are not safe."""

import json
import os
import shutil
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zmq

from remotely.errors import NotAllowed
from remotely.machine import folders
from remotely.transport import key_files, keys
from remotely.transport.keys import MasterKey, MemberKey

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the master runs on POSIX only")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "home" / "keys"
    key_files.make_keys(made)
    return made


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- creation -------------------------------------------------------------------------------------


def test_the_first_start_creates_matching_keys(folder: Path) -> None:
    master = key_files.load_master(folder / "master.key")
    client = key_files.load_member(folder / "client.key", "client")
    worker = key_files.load_member(folder / "worker.key", "worker")
    viewer = key_files.load_member(folder / "viewer.key", "viewer")
    members = (client, worker, viewer)
    assert {member.master_public for member in members} == {master.pair.public}
    roles = [master.role_of(member.pair.public) for member in members]
    assert roles == ["client", "worker", "viewer"]
    assert master.role_of(keys.fresh_pair().public) is master.role_of(b"") is None
    pairs = [master.pair, *(member.pair for member in members)]
    assert len({pair.secret for pair in pairs}) == 4
    for pair in pairs:
        assert zmq.curve_public(pair.secret) == pair.public


def test_the_second_start_changes_nothing(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    key_files.make_keys(folder)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_key_files_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "home" / "keys"
    old = os.umask(umask)
    try:
        key_files.make_keys(folder)
    finally:
        os.umask(old)
    assert mode_of(folder) == mode_of(folder.parent) == 0o700
    assert {mode_of(folder / f"{name}.key") for name in ("master", "client", "worker")} == {0o600}


def test_concurrent_starts_create_one_set_of_keys(tmp_path: Path) -> None:
    def start(_: int) -> tuple[MasterKey, MemberKey, MemberKey]:
        key_files.make_keys(tmp_path / "keys")
        return (
            key_files.load_master(tmp_path / "keys/master.key"),
            key_files.load_member(tmp_path / "keys/client.key"),
            key_files.load_member(tmp_path / "keys/worker.key"),
        )

    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(start, range(16)))
    assert len(set(seen)) == 1
    names = {path.name for path in (tmp_path / "keys").iterdir() if path.is_file()}
    assert names == {".lock", "master.key", "client.key", "worker.key", "viewer.key"}


def test_the_next_start_completes_an_interrupted_one(folder: Path) -> None:
    master = key_files.load_master(folder / "master.key")
    (folder / "worker.key").unlink()
    key_files.make_keys(folder)
    again = key_files.load_master(folder / "master.key")
    worker = key_files.load_member(folder / "worker.key", "worker")
    assert again.pair == master.pair
    assert again.client_keys == master.client_keys
    assert again.role_of(worker.pair.public) == "worker"


def test_a_failed_write_leaves_the_old_file_and_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def fail(fd: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    (folder / "worker.key").unlink()
    del before[folder / "worker.key"]
    with pytest.raises(OSError, match="no space"):
        key_files.make_keys(folder)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_the_key_of_another_cluster_is_not_overwritten(tmp_path: Path) -> None:
    key_files.make_keys(tmp_path / "theirs")
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    copied = ours / "client.key"
    copied.write_bytes((tmp_path / "theirs/client.key").read_bytes())
    copied.chmod(0o600)
    before = copied.read_bytes()
    with pytest.raises(NotAllowed, match="another master") as refused:
        key_files.make_keys(ours)
    assert "mv " in str(refused.value)
    assert copied.read_bytes() == before
    assert not (ours / "master.key").exists()


def test_a_start_replaces_a_revoked_key_of_its_own_by_another(folder: Path) -> None:
    before = {role: key_files.load_member(folder / f"{role}.key") for role in keys.ROLES}
    key_files.revoke_key(folder, before["worker"].pair.public)
    key_files.make_keys(folder)
    after = {role: key_files.load_member(folder / f"{role}.key") for role in keys.ROLES}
    master = key_files.load_master(folder / "master.key")
    assert master.role_of(before["worker"].pair.public) is None
    assert master.role_of(after["worker"].pair.public) == "worker"
    assert {role for role in keys.ROLES if before[role] != after[role]} == {"worker"}


def test_a_start_adds_a_key_that_an_older_version_did_not_create(folder: Path) -> None:
    file = folder / "master.key"
    values = json.loads(file.read_text())
    del values["viewers"]
    file.write_text(json.dumps(values))
    (folder / "viewer.key").unlink()
    others = {name: (folder / name).read_bytes() for name in ("client.key", "worker.key")}
    key_files.make_keys(folder)
    viewer = key_files.load_member(folder / "viewer.key", "viewer")
    assert key_files.load_master(file).role_of(viewer.pair.public) == "viewer"
    assert {name: (folder / name).read_bytes() for name in others} == others


def test_remotely_home_sets_the_key_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REMOTELY_HOME", str(tmp_path))
    assert folders.key_folder() == tmp_path / "keys"
    monkeypatch.delenv("REMOTELY_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert folders.key_folder() == tmp_path / "me" / ".remotely" / "keys"


# --- refusal --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
@pytest.mark.parametrize("name", ["master", "client"])
def test_a_key_open_to_others_is_refused_with_the_command_that_fixes_it(
    folder: Path, name: str, mode: int
) -> None:
    file = folder / f"{name}.key"
    file.chmod(mode)
    load = key_files.load_master if name == "master" else key_files.load_member
    with pytest.raises(NotAllowed) as refused:
        load(file)
    assert f"`chmod 600 {file}`" in str(refused.value)
    file.chmod(0o600)
    load(file)


def test_the_command_can_be_pasted_even_if_the_path_has_a_space(tmp_path: Path) -> None:
    folder = tmp_path / "my keys"
    key_files.make_keys(folder)
    (folder / "client.key").chmod(0o644)
    with pytest.raises(NotAllowed) as refused:
        key_files.load_member(folder / "client.key")
    command = str(refused.value).split("`")[1]
    subprocess.run(command, shell=True, check=True)
    key_files.load_member(folder / "client.key")


def test_a_symbolic_link_is_refused(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "client.key"
    link.symlink_to(folder / "client.key")
    with pytest.raises(NotAllowed, match="symbolic link"):
        key_files.load_member(link)


def test_a_key_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(NotAllowed, match="another user"):
        key_files.load_member(folder / "client.key")
    with pytest.raises(NotAllowed, match="another user"):
        key_files.make_keys(folder)


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with pytest.raises(NotAllowed, match="chmod 700"):
        key_files.make_keys(folder)


def test_a_missing_key_error_says_where_keys_come_from(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed) as refused:
        key_files.load_member(tmp_path / "client.key", "client")
    assert "`remotely start` makes" in str(refused.value)
    assert "copy client.key" in str(refused.value)


def test_a_key_of_the_wrong_role_is_refused(folder: Path) -> None:
    with pytest.raises(NotAllowed, match=r"worker's key; a client needs client\.key"):
        key_files.load_member(folder / "worker.key", "client")
    with pytest.raises(NotAllowed, match=r"client's key; a worker needs worker\.key"):
        key_files.load_member(folder / "client.key", "worker")
    with pytest.raises(NotAllowed, match="master's own key"):
        key_files.load_member(folder / "master.key", "worker")
    with pytest.raises(NotAllowed, match=r"master needs master\.key"):
        key_files.load_master(folder / "client.key")


def test_a_path_that_is_no_file_is_refused_without_blocking(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("folder", "pipe"):
        with pytest.raises(NotAllowed):
            key_files.load_member(tmp_path / name)


def other(text: str) -> str:
    """Return another key of the same form."""
    return text[1:] + text[:1]


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: b"",
        lambda values: b"not json",
        lambda values: b"[]",
        lambda values: b"\xff" * 100,
        lambda values: b"[" * 100_000,
        lambda values: json.dumps(values).encode()[:-30],
        lambda values: json.dumps({**values, "secret": values["secret"][:-1]}).encode(),
        lambda values: json.dumps({**values, "secret": "\u00e9" * 40}).encode(),
        lambda values: json.dumps({**values, "secret": '"' * 40}).encode(),
        lambda values: json.dumps({**values, "secret": "#" * 40}).encode(),
        lambda values: json.dumps({**values, "public": other(values["public"])}).encode(),
        lambda values: json.dumps({**values, "extra": 1}).encode(),
        lambda values: json.dumps({**values, "master": None}).encode(),
        lambda values: json.dumps({**values, "role": "king"}).encode(),
    ],
)
def test_a_damaged_key_is_refused_without_showing_the_secret(
    folder: Path, damage: Callable[[dict[str, Any]], bytes]
) -> None:
    file = folder / "client.key"
    values = json.loads(file.read_text())
    file.write_bytes(damage(values))
    with pytest.raises(NotAllowed, match="is damaged") as refused:
        key_files.load_member(file)
    text = "".join(traceback.format_exception(refused.value))
    assert values["secret"][:-1] not in text


def test_importing_keys_creates_none(tmp_path: Path) -> None:
    script = "import remotely.transport.key_files"
    environ = {**os.environ, "REMOTELY_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", script], check=True, env=environ)
    assert not (tmp_path / "home").exists()


def test_an_unlisted_key_cannot_be_revoked_nor_a_file_overwritten(folder: Path) -> None:
    with pytest.raises(NotAllowed, match="`remotely keys list` shows"):
        key_files.revoke_key(folder, keys.fresh_pair().public)
    with pytest.raises(NotAllowed, match="exists and is not overwritten"):
        key_files.add_key(folder, "client", folder / "client.key")


def test_keys_are_added_and_revoked_only_where_a_cluster_has_been_started(tmp_path: Path) -> None:
    there = tmp_path / "home" / "keys"
    with pytest.raises(NotAllowed, match=r"`remotely start` makes it, on the master's machine"):
        key_files.add_key(there, "client", tmp_path / "ada.key")
    with pytest.raises(NotAllowed, match="`remotely start` makes it"):
        key_files.revoke_key(there, keys.fresh_pair().public)
    assert not list(tmp_path.iterdir())


# --- whether a master has left workers ------------------------------------------------------------


def test_keys_that_no_master_has_used_have_left_no_workers(tmp_path: Path) -> None:
    key_files.make_keys(tmp_path / "keys")
    assert key_files.take_ended(tmp_path / "keys", 8010)
    assert not key_files.take_ended(tmp_path / "keys", 8010)
    key_files.make_keys(tmp_path / "keys")
    assert not key_files.take_ended(tmp_path / "keys", 8010)


def test_a_master_that_has_ended_in_order_has_left_no_workers_of_its_port(tmp_path: Path) -> None:
    key_files.make_keys(tmp_path / "keys")
    key_files.take_ended(tmp_path / "keys", 8010)
    key_files.note_ended(tmp_path / "keys" / "master.key", 8010)
    assert not key_files.take_ended(tmp_path / "keys", 8011)
    assert key_files.take_ended(tmp_path / "keys", 8010)
    assert not key_files.take_ended(tmp_path / "keys", 8010)


def test_copied_keys_may_have_been_used(tmp_path: Path) -> None:
    """As in a container that gets the files of a Secret at each start."""
    key_files.make_keys(tmp_path / "keys")
    (tmp_path / "copy").mkdir(mode=0o700)
    for file in (tmp_path / "keys").glob("*.key"):
        shutil.copy(file, tmp_path / "copy")
    key_files.make_keys(tmp_path / "copy")
    assert not key_files.take_ended(tmp_path / "copy", 8010)
