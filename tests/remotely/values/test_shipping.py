"""Shipped files arrive as they were, where they are looked for, and nowhere else."""

import hashlib
import os
from pathlib import Path

import pytest

from remotely.errors import RemotelyError
from remotely.values import shipping
from remotely.values.shipping import Shipment, lay_out, missing, store


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's current folder."""
    folder = tmp_path / "client"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """The worker's folder."""
    folder = tmp_path / "worker"
    folder.mkdir()
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def stored(worker: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (worker / "files").iterdir()}


def send(shipment: Shipment, worker: Path) -> list[str]:
    """Do what client and actor do; return the hashes of the files that were sent."""
    sent = missing(worker, shipment.files)
    for digest in sent:
        store(worker, digest, shipment.read(digest))
    return sent


def arrived(shipment: Shipment, worker: Path) -> dict[str, str]:
    send(shipment, worker)
    root = lay_out(worker, shipment.files)
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_text() for path in files}


# --- names and hashes -----------------------------------------------------------------------------


def test_a_file_is_known_by_its_name_and_by_the_hash_of_its_bytes(here: Path) -> None:
    write(here / "lib.py", "x = 1\n")
    assert Shipment(["lib.py"]).files == {"lib.py": sha("x = 1\n")}


def test_a_folder_is_shipped_with_all_below_it(here: Path, worker: Path) -> None:
    for name in ("data/a.csv", "data/deep/er/b.csv", "lib.py"):
        write(here / name, name)
    files = arrived(Shipment(["data/", "lib.py"]), worker)
    assert files == {n: n for n in ("data/a.csv", "data/deep/er/b.csv", "lib.py")}


def test_compiled_python_stays_at_home(here: Path) -> None:
    write(here / "lib" / "a.py", "")
    write(here / "lib" / "__pycache__" / "a.cpython-311.pyc", "")
    assert set(Shipment(["lib"]).files) == {"lib/a.py"}


def test_a_path_may_be_absolute(here: Path) -> None:
    write(here / "data" / "a.csv", "1")
    assert set(Shipment([here / "data"]).files) == {"data/a.csv"}


def test_a_file_from_elsewhere_lies_at_the_top(here: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "elsewhere" / "lib.py", "")
    assert set(Shipment([file]).files) == {"lib.py"}
    assert set(Shipment(["../elsewhere/lib.py"]).files) == {"lib.py"}


def test_a_folder_from_elsewhere_keeps_its_shape(here: Path, worker: Path, tmp_path: Path) -> None:
    for name in ("train/x.csv", "test/x.csv"):
        write(tmp_path / "elsewhere" / "data" / name, name)
    files = arrived(Shipment([tmp_path / "elsewhere" / "data"]), worker)
    assert files == {f"data/{name}": name for name in ("train/x.csv", "test/x.csv")}


def test_a_link_is_shipped_under_its_own_name(here: Path, worker: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "elsewhere" / "weights-v2.bin", "weights")
    (here / "models").mkdir()
    (here / "models" / "weights.bin").symlink_to(target)
    assert arrived(Shipment(["models"]), worker) == {"models/weights.bin": "weights"}


def test_a_linked_folder_is_shipped_under_its_own_name(
    here: Path, worker: Path, tmp_path: Path
) -> None:
    write(tmp_path / "disk" / "2026" / "a.csv", "1")
    (here / "data").symlink_to(tmp_path / "disk" / "2026")
    assert arrived(Shipment(["data/"]), worker) == {"data/a.csv": "1"}
    assert set(Shipment(["data/a.csv"]).files) == {"data/a.csv"}


def test_links_to_folders_are_followed_wherever_they_lie(
    here: Path, worker: Path, tmp_path: Path
) -> None:
    write(tmp_path / "disk" / "train" / "a.csv", "1")
    write(here / "shared" / "b.csv", "2")
    for data in (here / "data", tmp_path / "elsewhere" / "more"):
        data.mkdir(parents=True)
        (data / "train").symlink_to(tmp_path / "disk" / "train")
        (data / "again").symlink_to("train")
        (data / "here").symlink_to(here / "shared")
    files = arrived(Shipment(["data/", tmp_path / "elsewhere" / "more"]), worker)
    within = {"train/a.csv": "1", "again/a.csv": "1", "here/b.csv": "2"}
    assert files == {f"{d}/{n}": text for d in ("data", "more") for n, text in within.items()}


def test_a_link_to_a_folder_that_it_lies_in_is_refused(here: Path) -> None:
    write(here / "data" / "deep" / "a.csv", "1")
    (here / "data" / "deep" / "up").symlink_to(here / "data")
    with pytest.raises(RemotelyError, match=r"cannot ship 'data/deep/up': it is a link to"):
        Shipment(["data"])


def test_a_path_through_a_link_to_this_folder_is_named_from_here(
    here: Path, tmp_path: Path
) -> None:
    write(here / "deep" / "lib.py", "")
    (tmp_path / "alias").symlink_to(here)
    assert set(Shipment([tmp_path / "alias" / "deep" / "lib.py"]).files) == {"deep/lib.py"}


def test_a_path_that_is_not_there_is_named(here: Path) -> None:
    with pytest.raises(RemotelyError, match=r"cannot ship 'dta': .*no such file or folder"):
        Shipment(["dta/"])


def test_a_file_that_is_too_large_is_named_with_what_to_do(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "MAX_FILE_BYTES", 10)
    write(here / "huge.bin", "." * 11)
    with pytest.raises(RemotelyError, match=r"huge\.bin is larger .* where the workers can read"):
        Shipment(["huge.bin"])


def test_a_pattern_is_what_matches_it(here: Path, worker: Path, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.txt", "deep/d.csv", "[odd].txt"):
        write(here / name, name)
    write(tmp_path / "elsewhere" / "e.csv", "e.csv")
    given: list[str | Path] = ["*.csv", Path("deep/**/*.csv"), "[odd].txt", "../elsewhere/*.csv"]
    files = arrived(Shipment(given), worker)
    assert files == {n: n for n in ("a.csv", "b.csv", "deep/d.csv", "[odd].txt", "e.csv")}


def test_a_pattern_that_nothing_matches_is_named(here: Path) -> None:
    with pytest.raises(RemotelyError, match=r"cannot ship '\*\.csv': no file matches it"):
        Shipment(["*.csv"])


def test_one_path_needs_no_list(here: Path) -> None:
    write(here / "lib.py", "")
    assert set(Shipment("lib.py").files) == set(Shipment(Path("lib.py")).files) == {"lib.py"}


def test_an_empty_folder_is_shipped(here: Path, worker: Path) -> None:
    write(here / "data" / "full" / "a", "a")
    write(here / "data" / "compiled" / "__pycache__" / "a.pyc", "")
    (here / "data" / "deep" / "empty").mkdir(parents=True)
    (here / "alone").mkdir()
    shipment = Shipment(["data", "alone/", "."])
    send(shipment, worker)
    root = lay_out(worker, shipment.files)
    for name in ("data/deep/empty", "data/compiled", "alone"):
        assert not list((root / name).iterdir())
    assert Shipment.from_tree(root, shipment.files).files == shipment.files


def test_two_files_of_one_name_are_refused(here: Path, tmp_path: Path) -> None:
    for folder in ("train", "test"):
        write(tmp_path / folder / "x.csv", folder)
    with pytest.raises(RemotelyError, match=r"both be shipped as 'x\.csv': ship the folder"):
        Shipment(["../train/x.csv", "../test/x.csv"])
    assert set(Shipment(["../train/x.csv", "../train/*.csv"]).files) == {"x.csv"}


def test_shipping_nothing_is_nothing(here: Path, worker: Path) -> None:
    assert Shipment().files == {}
    assert missing(worker, {}) == []


# --- the store ------------------------------------------------------------------------------------


def test_a_worker_asks_once_for_each_content(here: Path, worker: Path) -> None:
    write(here / "a.txt", "same")
    write(here / "b.txt", "same")
    write(here / "c.txt", "other")
    shipment = Shipment(["a.txt", "b.txt", "c.txt"])
    assert send(shipment, worker) == sorted([sha("same"), sha("other")])
    assert send(shipment, worker) == []


def test_only_a_file_that_changed_is_sent_again(here: Path, worker: Path) -> None:
    write(here / "data" / "large", "unchanged")
    write(here / "data" / "small", "before")
    assert len(send(Shipment(["data"]), worker)) == 2
    write(here / "data" / "small", "after")
    assert send(Shipment(["data"]), worker) == [sha("after")]


def test_the_store_refuses_content_that_is_not_of_its_hash(worker: Path) -> None:
    with pytest.raises(RemotelyError, match="changed while it was being sent"):
        store(worker, sha("promised"), b"something else")
    assert missing(worker, {"x": sha("promised")}) == [sha("promised")]


@pytest.mark.parametrize("digest", ["../escaped", "/etc/passwd", "", "x" * 64])
def test_a_hash_is_never_taken_as_a_path(worker: Path, digest: str) -> None:
    with pytest.raises(RemotelyError):
        store(worker, digest, b"content")
    assert not (worker / "files").exists()
    assert not (worker / "escaped").exists()


@pytest.mark.parametrize("change", ["write", "unlink"])
def test_a_file_that_changes_after_connect_is_named_with_what_to_do(
    here: Path, worker: Path, change: str
) -> None:
    file = write(here / "lib.py", "before")
    shipment = Shipment(["lib.py"])
    file.unlink() if change == "unlink" else write(file, "after")
    with pytest.raises(RemotelyError, match=r"lib\.py is not what it was.* run the script again"):
        send(shipment, worker)


def test_what_is_stored_stays_while_others_store_it_too(worker: Path) -> None:
    """Somebody may be about to link to it."""
    store(worker, sha("content"), b"content")
    first = (worker / "files" / sha("content")).stat()
    store(worker, sha("content"), b"content")
    again = (worker / "files" / sha("content")).stat()
    assert (again.st_ino, again.st_nlink) == (first.st_ino, 1)


def test_the_store_takes_a_view_of_a_message_and_leaves_no_parts(worker: Path) -> None:
    for _ in range(2):  # two actors may store one file
        store(worker, sha("content"), memoryview(b"content"))
    assert stored(worker) == {sha("content"): b"content"}


# --- the tree -------------------------------------------------------------------------------------


def test_a_tree_costs_no_space(here: Path, worker: Path) -> None:
    write(here / "data" / "a", "content")
    shipment = Shipment(["data"])
    send(shipment, worker)
    root = lay_out(worker, shipment.files)
    assert (root / "data" / "a").samefile(worker / "files" / sha("content"))


def test_laying_out_again_gives_the_same_tree(here: Path, worker: Path) -> None:
    write(here / "a", "content")
    shipment = Shipment(["a"])
    send(shipment, worker)
    assert lay_out(worker, shipment.files) == lay_out(worker, shipment.files)


def test_other_names_or_contents_are_another_tree(here: Path, worker: Path) -> None:
    roots = set()
    for name, text in (("a", "one"), ("b", "one"), ("a", "two")):
        write(here / name, text)
        shipment = Shipment([name])
        send(shipment, worker)
        roots.add(lay_out(worker, shipment.files))
        (here / name).unlink()
    assert len(roots) == 3


@pytest.mark.parametrize("name", ["../out.py", "data/../../out.py", "/out.py", "..", ".", ""])
def test_a_name_that_leads_out_of_its_folder_is_refused(worker: Path, name: str) -> None:
    store(worker, sha("content"), b"content")
    with pytest.raises(RemotelyError, match="is outside of its folder"):
        lay_out(worker, {name: sha("content")})
    assert {path.name for path in worker.iterdir()} <= {"files", "trees"}
    assert not list(worker.rglob("out.py"))


def test_an_actor_cannot_change_what_the_next_one_gets(here: Path, worker: Path) -> None:
    write(here / "a", "content")
    shipment = Shipment(["a"])
    send(shipment, worker)
    laid = lay_out(worker, shipment.files) / "a"
    assert not laid.stat().st_mode & 0o222
    assert laid.stat().st_mode & 0o400
    if os.geteuid() != 0:  # whom no mode stops
        with pytest.raises(PermissionError):
            laid.write_text("changed")


def test_an_actor_ships_on_what_was_shipped_to_it(here: Path, worker: Path, tmp_path: Path) -> None:
    write(here / "data" / "a", "content")
    first = Shipment(["data"])
    send(first, worker)
    second = Shipment.from_tree(lay_out(worker, first.files), first.files)
    other = tmp_path / "other worker"
    other.mkdir()
    assert arrived(second, other) == {"data/a": "content"}


def test_an_actor_to_which_nothing_was_shipped_ships_nothing_on() -> None:
    assert Shipment.from_tree(None, {}).files == {}
