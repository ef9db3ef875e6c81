"""The surroundings of a client that a new actor is given: files, and the settings of the script.

Files travel by `connect(ship=["data/", "lib.py", "models/*.pt"])`.

A file is identified by the SHA-256 of its bytes.  A worker stores each file once, under
`files/HASH`.  A client's tree is made of links into that store, under `trees/HASH OF THE LIST`, and
added to `sys.path`.  The working directory never changes: `remotely.shipped("data/x.csv")` is the
path, on either side.
"""

import contextlib
import glob
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from remotely.errors import RemotelyError
from remotely.protocol.control import Prepare
from remotely.protocol.resources import format_bytes
from remotely.reporting import log_records

MAX_FILE_BYTES = 2 << 30


class Shipment:
    """The files of one client: where they lie here, and their hashes.

    A folder with nothing in it is a name that ends in "/", and has no hash.
    """

    def __init__(self, paths: str | Path | Iterable[str | Path] = ()) -> None:
        self.root = Path.cwd()
        self.files: dict[str, str] = {}
        self._paths: dict[str, Path] = {}
        for given in _expanded([paths] if isinstance(paths, str | Path) else paths):
            for path in _files_of(given):
                self._add(path, _name_of(path, given, self.root))

    def _add(self, path: Path, name: str) -> None:
        if path.is_dir():
            if name != ".":
                self.files[f"{name}/"] = ""
            return
        digest = _digest(path)
        if self.files.setdefault(name, digest) != digest:
            raise RemotelyError(
                f"{str(path)!r} and another file would both be shipped as {name!r}: ship the "
                "folder that they have in common"
            )
        self._paths[digest] = path

    @classmethod
    def from_tree(cls, root: Path | None, files: dict[str, str]) -> "Shipment":
        """Return what was shipped to this actor, to be shipped on to those that it makes."""
        shipment = cls()
        if root is not None:
            shipment.files = dict(files)
            shipment._paths = {digest: root / name for name, digest in files.items() if digest}
        return shipment

    def read(self, digest: str) -> bytes:
        """Return a file's bytes.  Raises RemotelyError if they are not what they were."""
        path = self._paths[digest]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RemotelyError(f"{_CHANGED.format(path)}: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise RemotelyError(_CHANGED.format(path))
        return content


_CHANGED = (
    "{} is not what it was when remotely.connect(ship=...) read it, and all actors are to have the "
    "same files: run the script again, or call remotely.shutdown() and connect again"
)


def missing(folder: Path, files: dict[str, str]) -> list[str]:
    """Return the hashes of those files that this worker does not have yet."""
    digests = {digest for digest in files.values() if digest}
    return sorted(digest for digest in digests if not _stored(folder, digest).exists())


def store(folder: Path, digest: str, content: bytes | memoryview) -> None:
    """Keep one file's bytes.  Raises RemotelyError if they changed on the way or at the client."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise RemotelyError("a shipped file changed while it was being sent; run the script again")
    target = _stored(folder, digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several actors may store one file at once, while others link to it.  The first one wins and
    # stays.  A rename over it would leave the others a file without a name, which has no links.
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(temporary, 0o400)  # the trees link to it: a change of one file would change all
    with contextlib.suppress(FileExistsError):
        os.link(temporary, target)
    os.unlink(temporary)


def lay_out(folder: Path, files: dict[str, str]) -> Path:
    """Return the root of a tree in which every file has its name; links cost no space."""
    listing = "\n".join(f"{name} {digest}" for name, digest in sorted(files.items()))
    root = folder / "trees" / hashlib.sha256(listing.encode()).hexdigest()[:16]
    for name, digest in files.items():
        target = (root / name).resolve()
        if root.resolve() not in target.parents:
            raise RemotelyError(f"the shipped name {name!r} leads out of its folder")
        if not digest:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(_stored(folder, digest), target)
    return root


def _stored(folder: Path, digest: str) -> Path:
    return folder / "files" / digest


def _expanded(paths: Iterable[str | Path]) -> Iterator[Path]:
    """Return what is meant: each path, or all that match it as a pattern."""
    for given in paths:
        pattern = os.fspath(given)
        if not glob.has_magic(pattern) or os.path.lexists(pattern):
            yield Path(given)
            continue
        found = sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise RemotelyError(f"cannot ship {pattern!r}: no file matches it")
        yield from map(Path, found)


def _files_of(path: Path) -> list[Path]:
    """Return the files below a path, and the folders in which there is nothing to ship."""
    if path.is_dir():
        return list(_below(path, frozenset({path.resolve()})))
    if path.is_file():
        return [path]
    raise RemotelyError(f"cannot ship {str(path)!r}: there is no such file or folder")


def _below(folder: Path, around: frozenset[Path]) -> Iterator[Path]:
    """Yield them, through links too; `around` are the folders that lead here, without links."""
    try:
        inside = sorted(path for path in folder.iterdir() if path.name != "__pycache__")
    except OSError as error:
        raise RemotelyError(f"cannot ship {str(folder)!r}: {error.strerror}") from None
    is_empty = True
    for path in inside:
        if path.is_dir():
            if (real := path.resolve()) in around:
                raise RemotelyError(
                    f"cannot ship {str(path)!r}: it is a link to {str(real)!r}, in which it lies "
                    "itself. Remove it, or ship what lies beside it"
                )
            yield from _below(path, around | {real})
        elif path.is_file():
            yield path
        else:
            continue
        is_empty = False
    if is_empty:
        yield folder


def _name_of(path: Path, given: Path, root: Path) -> str:
    """Return a file's name below the client's folder, or below that of what was given.

    Links keep their names: only those on the way to what was given are followed, to see where it
    lies.
    """
    full, start = Path(os.path.abspath(path)), Path(os.path.abspath(given))
    way = start.resolve() if start.is_dir() else start.parent.resolve() / start.name
    for candidate in (full, way / full.relative_to(start)):
        if candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return full.relative_to(start.parent).as_posix()


def _digest(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise RemotelyError(
            f"{path} is larger than {format_bytes(MAX_FILE_BYTES)}; put it where the workers can "
            "read it"
        )
    return hashlib.sha256(path.read_bytes()).hexdigest()


def prepare(
    job: str, host: str, files: dict[str, str], concurrency: int, sources: bytes
) -> Prepare:
    """Return what a new actor is told of this process, so that the user's modules find there what
    they would find here; `files` are shipped, `sources` the modules of the script."""
    return Prepare(
        job=job,
        host=host,
        path=[str(Path(entry).absolute()) for entry in sys.path],
        files=files,
        concurrency=concurrency,
        argv=[str(word).encode(errors="replace").decode() for word in sys.argv],
        log_levels=log_records.levels(),
        sources=sources,
    )
