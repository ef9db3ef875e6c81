"""Files that travel with a client: `connect(ship=["data/", "lib.py"])`.

A file is known by the SHA-256 of its bytes.  A worker stores each once, under `files/HASH`; a
client's tree is laid out over there from links into that store, under `trees/HASH OF THE LIST`,
and put on `sys.path`.  Nobody changes directory: `remotely.shipped("data/x.csv")` is the path, on
either side.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from remotely.errors import RemotelyError

MAX_FILE_BYTES = 2 << 30


class Shipment:
    """The files of one client: where they lie here, and their hashes."""

    def __init__(self, paths: Iterable[str | Path] = ()) -> None:
        self.root = Path.cwd()
        self.files: dict[str, str] = {}
        self._paths: dict[str, Path] = {}
        for given in paths:
            for path in _files_of(Path(given)):
                name = _name_of(path, Path(given), self.root)
                digest = _digest(path)
                self.files[name] = digest
                self._paths[digest] = path

    @classmethod
    def from_tree(cls, root: Path | None, files: dict[str, str]) -> "Shipment":
        """Return what was shipped to this actor, to be shipped on to those that it makes."""
        shipment = cls()
        if root is not None:
            shipment.files = dict(files)
            shipment._paths = {digest: root / name for name, digest in files.items()}
        return shipment

    def read(self, digest: str) -> bytes:
        """Return a file's bytes; they are checked against the hash where they arrive."""
        return self._paths[digest].read_bytes()


def missing(folder: Path, files: dict[str, str]) -> list[str]:
    """Return the hashes of those files that this worker does not have yet."""
    return sorted({digest for digest in files.values() if not _stored(folder, digest).exists()})


def store(folder: Path, digest: str, content: bytes | memoryview) -> None:
    """Keep one file's bytes.  Raises RemotelyError if they changed on the way or at the client."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise RemotelyError("a shipped file changed while it was being sent; run the script again")
    target = _stored(folder, digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several actors may store the same file at once; a rename lets the last one win, whole.
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(temporary, 0o400)  # the trees link to it: who changed one file would change all
    os.replace(temporary, target)


def lay_out(folder: Path, files: dict[str, str]) -> Path:
    """Return the root of a tree in which every file has its name; links cost no space."""
    listing = "\n".join(f"{name} {digest}" for name, digest in sorted(files.items()))
    root = folder / "trees" / hashlib.sha256(listing.encode()).hexdigest()[:16]
    for name, digest in files.items():
        target = (root / name).resolve()
        if root.resolve() not in target.parents:
            raise RemotelyError(f"the shipped name {name!r} leads out of its folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(_stored(folder, digest), target)
    return root


def _stored(folder: Path, digest: str) -> Path:
    return folder / "files" / digest


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        inside = (p for p in sorted(path.rglob("*")) if p.is_file())
        return [p for p in inside if "__pycache__" not in p.parts]
    if path.is_file():
        return [path]
    raise RemotelyError(f"cannot ship {str(path)!r}: there is no such file or folder")


def _name_of(path: Path, given: Path, root: Path) -> str:
    """Return a file's name below the client's folder, or below that of what was given.

    Links keep their names: only the folders that lead here are followed, to see where we are.
    """
    full = Path(os.path.abspath(path))
    for candidate in (full, full.parent.resolve() / full.name):
        if candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return full.relative_to(Path(os.path.abspath(given)).parent).as_posix()


def _digest(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise RemotelyError(f"{path} is larger than 2 GiB; put it where the workers can read it")
    return hashlib.sha256(path.read_bytes()).hexdigest()
