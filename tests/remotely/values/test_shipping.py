"""Shipped files: their names, the worker's store, and the trees of links."""

import hashlib
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
    for given in ("lib.py", Path("lib.py"), ["lib.py"], [here / "lib.py"]):
        assert Shipment(given).files == {"lib.py": sha("x = 1\n")}


def test_a_folder_is_shipped_with_all_below_it_except_compiled_code(
    here: Path, worker: Path
) -> None:
    names = ("data/a.csv", "data/deep/er/b.csv", "lib.py")
    for name in (*names, "data/__pycache__/a.cpython-311.pyc"):
        write(here / name, name)
    for data in ("data/", here / "data"):
        assert arrived(Shipment([data, "lib.py"]), worker) == {name: name for name in names}


def test_a_file_outside_the_clients_folder_is_at_the_top(here: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "elsewhere" / "lib.py", "")
    assert set(Shipment([file]).files) == {"lib.py"}
    assert set(Shipment(["../elsewhere/lib.py"]).files) == {"lib.py"}


def test_a_folder_outside_the_clients_folder_keeps_its_structure(
    here: Path, worker: Path, tmp_path: Path
) -> None:
    for name in ("train/x.csv", "test/x.csv"):
        write(tmp_path / "elsewhere" / "data" / name, name)
    files = arrived(Shipment([tmp_path / "elsewhere" / "data"]), worker)
    assert files == {f"data/{name}": name for name in ("train/x.csv", "test/x.csv")}


def test_links_are_shipped_under_their_own_names(here: Path, worker: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "elsewhere" / "weights-v2.bin", "weights")
    (here / "models").mkdir()
    (here / "models" / "weights.bin").symlink_to(target)
    write(tmp_path / "disk" / "2026" / "a.csv", "1")
    (here / "data").symlink_to(tmp_path / "disk" / "2026")
    files = {"models/weights.bin": "weights", "data/a.csv": "1"}
    assert arrived(Shipment(["models", "data/"]), worker) == files
    assert set(Shipment(["data/a.csv"]).files) == {"data/a.csv"}


def test_links_to_folders_are_followed_at_any_depth(
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


def test_a_link_to_one_of_its_parent_folders_is_refused(here: Path) -> None:
    write(here / "data" / "deep" / "a.csv", "1")
    (here / "data" / "deep" / "up").symlink_to(here / "data")
    with pytest.raises(RemotelyError, match=r"cannot ship 'data/deep/up': it is a link to"):
        Shipment(["data"])


def test_a_path_through_a_link_to_the_clients_folder_is_relative_to_that(
    here: Path, tmp_path: Path
) -> None:
    write(here / "deep" / "lib.py", "")
    (tmp_path / "alias").symlink_to(here)
    assert set(Shipment([tmp_path / "alias" / "deep" / "lib.py"]).files) == {"deep/lib.py"}


def test_a_missing_path_and_an_unmatched_pattern_are_named(here: Path) -> None:
    with pytest.raises(RemotelyError, match=r"cannot ship 'dta': .*no such file or folder"):
        Shipment(["dta/"])
    with pytest.raises(RemotelyError, match=r"cannot ship '\*\.csv': no file matches it"):
        Shipment(["*.csv"])


def test_a_too_large_file_is_named_with_advice(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "MAX_FILE_BYTES", 10)
    write(here / "huge.bin", "." * 11)
    with pytest.raises(RemotelyError, match=r"huge\.bin is larger .* that the workers can read"):
        Shipment(["huge.bin"])


def test_a_pattern_ships_all_files_that_match_it(here: Path, worker: Path, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.txt", "deep/d.csv", "[odd].txt"):
        write(here / name, name)
    write(tmp_path / "elsewhere" / "e.csv", "e.csv")
    given: list[str | Path] = ["*.csv", Path("deep/**/*.csv"), "[odd].txt", "../elsewhere/*.csv"]
    files = arrived(Shipment(given), worker)
    assert files == {n: n for n in ("a.csv", "b.csv", "deep/d.csv", "[odd].txt", "e.csv")}


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
    with pytest.raises(RemotelyError, match=r"both be shipped as 'x\.csv': ship their common"):
        Shipment(["../train/x.csv", "../test/x.csv"])
    assert set(Shipment(["../train/x.csv", "../train/*.csv"]).files) == {"x.csv"}


# --- the store ------------------------------------------------------------------------------------


def test_each_content_is_sent_once(here: Path, worker: Path) -> None:
    write(here / "a.txt", "same")
    write(here / "b.txt", "same")
    write(here / "c.txt", "other")
    names = ["a.txt", "b.txt", "c.txt"]
    assert send(Shipment(names), worker) == sorted([sha("same"), sha("other")])
    write(here / "c.txt", "changed")
    assert send(Shipment(names), worker) == [sha("changed")]


@pytest.mark.parametrize("digest", [sha("promised"), "../escaped", "/etc/passwd", "", "x" * 64])
def test_content_that_does_not_match_its_hash_is_not_stored(worker: Path, digest: str) -> None:
    with pytest.raises(RemotelyError, match="changed while it was being sent"):
        store(worker, digest, b"content")
    assert not (worker / "files").exists()
    assert not (worker / "escaped").exists()


@pytest.mark.parametrize("change", ["write", "unlink"])
def test_a_file_that_changes_after_connect_is_named_with_advice(
    here: Path, worker: Path, change: str
) -> None:
    file = write(here / "lib.py", "before")
    shipment = Shipment(["lib.py"])
    file.unlink() if change == "unlink" else write(file, "after")
    with pytest.raises(RemotelyError, match=r"lib\.py has changed.* run the script again"):
        send(shipment, worker)


def test_storing_a_file_again_changes_nothing(worker: Path) -> None:
    """Another actor may be about to link to it."""
    store(worker, sha("content"), b"content")
    first = (worker / "files" / sha("content")).stat()
    store(worker, sha("content"), memoryview(b"content"))
    again = (worker / "files" / sha("content")).stat()
    assert (again.st_ino, again.st_nlink) == (first.st_ino, 1)
    (file,) = (worker / "files").iterdir()
    assert (file.name, file.read_bytes()) == (sha("content"), b"content")


# --- the tree -------------------------------------------------------------------------------------


def test_each_names_and_contents_have_one_tree_of_links(here: Path, worker: Path) -> None:
    roots = set()
    for name, text in (("a", "one"), ("b", "one"), ("a", "two")):
        write(here / name, text)
        shipment = Shipment([name])
        send(shipment, worker)
        root = lay_out(worker, shipment.files)
        assert root == lay_out(worker, shipment.files)
        assert (root / name).samefile(worker / "files" / sha(text))
        roots.add(root)
        (here / name).unlink()
    assert len(roots) == 3


@pytest.mark.parametrize("name", ["../out.py", "data/../../out.py", "/out.py", "..", ".", ""])
def test_a_name_outside_of_its_folder_is_refused(worker: Path, name: str) -> None:
    store(worker, sha("content"), b"content")
    with pytest.raises(RemotelyError, match="is outside of its folder"):
        lay_out(worker, {name: sha("content")})
    assert {path.name for path in worker.iterdir()} <= {"files", "trees"}
    assert not list(worker.rglob("out.py"))


def test_files_of_a_tree_are_read_only(here: Path, worker: Path) -> None:
    write(here / "a", "content")
    shipment = Shipment(["a"])
    send(shipment, worker)
    mode = (lay_out(worker, shipment.files) / "a").stat().st_mode
    assert mode & 0o777 == 0o400


def test_an_actor_ships_its_files_to_the_actors_that_it_creates(
    here: Path, worker: Path, tmp_path: Path
) -> None:
    write(here / "data" / "a", "content")
    first = Shipment(["data"])
    send(first, worker)
    second = Shipment.from_tree(lay_out(worker, first.files), first.files)
    other = tmp_path / "other worker"
    other.mkdir()
    assert arrived(second, other) == {"data/a": "content"}
    assert Shipment.from_tree(None, {}).files == {}
