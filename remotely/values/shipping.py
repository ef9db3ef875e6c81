"""The files of a client that its actors receive, and the message PREPARE.

The user names the files: `connect(ship=["data/", "lib.py", "models/*.pt"])`.

A file is identified by the SHA-256 of its bytes.  A worker stores each file once, under
`files/HASH`.  A client's tree consists of links into that store, under `trees/HASH OF THE LIST`,
and is added to `sys.path`.  It never becomes the working directory: the path of a file is
`remotely.shipped("data/x.csv")`, in the client and in the actor.
"""

import contextlib
import glob
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from remotely.errors import RemotelyError
from remotely.protocol.control import MakerState, Prepare
from remotely.protocol.resources import format_bytes

MAX_FILE_BYTES = 2 << 30


class Shipment:
    """The files of one client: their paths on this machine, and their hashes.

    An empty folder is a name that ends in "/", and has no hash.
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
                f"{str(path)!r} and another file would both be shipped as {name!r}: ship their "
                "common parent folder"
            )
        self._paths[digest] = path

    @classmethod
    def from_tree(cls, root: Path | None, files: dict[str, str]) -> "Shipment":
        """Return the files shipped to this actor, for the actors that it creates."""
        shipment = cls()
        if root is not None:
            shipment.files = dict(files)
            shipment._paths = {digest: root / name for name, digest in files.items() if digest}
        return shipment

    def read(self, digest: str) -> bytes:
        """Return a file's bytes.  Raises RemotelyError if they have changed."""
        path = self._paths[digest]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RemotelyError(f"{_CHANGED.format(path)}: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise RemotelyError(_CHANGED.format(path))
        return content


_CHANGED = (
    "{} has changed since remotely.connect(ship=...) read it, and all actors must have the same "
    "files: run the script again, or call remotely.shutdown() and connect again"
)


def missing(folder: Path, files: dict[str, str]) -> list[str]:
    """Return the hashes of the files that this worker does not have yet."""
    digests = {digest for digest in files.values() if digest}
    return sorted(digest for digest in digests if not _stored(folder, digest).exists())


def store(folder: Path, digest: str, content: bytes | memoryview) -> None:
    """Store one file's bytes.  Raises RemotelyError if they do not match the hash."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise RemotelyError("a shipped file changed while it was being sent; run the script again")
    target = _stored(folder, digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several actors may store one file at once, while others link to it.  The first one wins.  A
    # rename over it would unlink the file that others are about to link to.
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.chmod(temporary, 0o400)  # all trees link to it, so it must not be changed
    with contextlib.suppress(FileExistsError):
        os.link(temporary, target)
    os.unlink(temporary)


def lay_out(folder: Path, files: dict[str, str]) -> Path:
    """Create the tree of links in which every file has its name, and return its root."""
    listing = "\n".join(f"{name} {digest}" for name, digest in sorted(files.items()))
    root = folder / "trees" / hashlib.sha256(listing.encode()).hexdigest()[:16]
    for name, digest in files.items():
        target = (root / name).resolve()
        if root.resolve() not in target.parents:
            raise RemotelyError(f"the shipped name {name!r} is outside of its folder")
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
    """Yield each path, or all paths that match it as a pattern."""
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
    """Return the files below a path, and the folders without any file to ship."""
    if path.is_dir():
        return list(_below(path, frozenset({path.resolve()})))
    if path.is_file():
        return [path]
    raise RemotelyError(f"cannot ship {str(path)!r}: there is no such file or folder")


def _below(folder: Path, parents: frozenset[Path]) -> Iterator[Path]:
    """Yield the files below a folder, through links too; `parents` are resolved."""
    try:
        inside = sorted(path for path in folder.iterdir() if path.name != "__pycache__")
    except OSError as error:
        raise RemotelyError(f"cannot ship {str(folder)!r}: {error.strerror}") from None
    is_empty = True
    for path in inside:
        if path.is_dir():
            if (real := path.resolve()) in parents:
                raise RemotelyError(
                    f"cannot ship {str(path)!r}: it is a link to {str(real)!r}, which contains it. "
                    "Remove the link, or ship the files beside it"
                )
            yield from _below(path, parents | {real})
        elif path.is_file():
            yield path
        else:
            continue
        is_empty = False
    if is_empty:
        yield folder


def _name_of(path: Path, given: Path, root: Path) -> str:
    """Return a file's name relative to the client's folder, or else to the parent of `given`.

    Links below `given` keep their names; only links in the path to it are resolved.
    """
    full, start = Path(os.path.abspath(path)), Path(os.path.abspath(given))
    real = start.resolve() if start.is_dir() else start.parent.resolve() / start.name
    for candidate in (full, real / full.relative_to(start)):
        if candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return full.relative_to(start.parent).as_posix()


def _digest(path: Path) -> str:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise RemotelyError(
            f"{path} is larger than {format_bytes(MAX_FILE_BYTES)}; put it on a file system that "
            "the workers can read"
        )
    return hashlib.sha256(path.read_bytes()).hexdigest()


def prepare(
    job: str, host: str, files: dict[str, str], concurrency: int, state: MakerState, sources: bytes
) -> Prepare:
    """Return the PREPARE message for a new actor.

    `files` are the shipped files, `sources` the modules of the script.
    """
    return Prepare(
        job=job,
        host=host,
        files=files,
        concurrency=concurrency,
        state=state,
        sources=sources,
    )
