"""Archive: the folder in which a replay is saved.

    replay.json             the index of the files below, and all other state
    rows-NUMBER.raw         bytes of rows and frames, one array after the other, column by column
    priorities-NUMBER.raw   the priorities of all rows

Rows are immutable, so a save writes only those since the last save to new files, and all
priorities.  Then it replaces replay.json, and deletes the files that are no longer needed.  No file
is written twice: after any crash, replay.json and the files that it names are those of one save.
replay.json has the size and the CRC-32 of every file, and a CRC-32 of its own.
"""

import json
import math
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remotely_rl import durable
from remotely_rl.errors import ReplayError
from remotely_rl.experience.replay.stores import Ring

FORMAT = 2
HEADER = "replay.json"
WRITTEN = re.compile(r"[a-z]+-(\d+)\.raw(?:\.tmp)?")
# A file holds at most 1 / PARTS of a full replay.  It is deleted once its last row is dropped, so a
# folder is larger than the replay by at most that.
PARTS = 8
# Threads that write: some wait for the disk while another computes a checksum.
WRITERS = 3

Rings = dict[str, list[Ring]]


@dataclass(frozen=True)
class File:
    """A file of an archive; a file of rows has the range of its entries in each kind of ring."""

    name: str
    nbytes: int
    crc: int
    first: dict[str, list[int]]
    end: dict[str, list[int]]


class Archive:
    """See the module's docstring.  `number` counts the saves to the folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.facts: dict[str, Any] = {}
        self.number = 0
        self._rows: list[File] = []
        self._arrays: dict[str, File] = {}
        self._settled: dict[str, NDArray[np.int64]] = {}
        self._shapes: dict[str, list[tuple[int, ...]]] = {}  # of the arrays in files of rows
        self._header = b""

    @classmethod
    def read(cls, folder: Path) -> "Archive":
        """Read the index of a folder.  Raises ReplayError if there is none, or it is damaged."""
        archive = cls(folder)
        try:
            archive._header = (folder / HEADER).read_bytes()
            whole = json.loads(archive._header)
            content = whole["content"]
            if content["format"] != FORMAT:
                raise ReplayError(
                    f"{folder} holds a replay of format {content['format']}, and this version reads"
                    f" only format {FORMAT}: use the version that saved it"
                )
            if zlib.crc32(_text(content)) != whole["crc"]:
                raise ValueError("its checksum is wrong")
            archive.facts, archive.number = content["facts"], content["number"]
            archive._rows = [File(**file) for file in content["rows"]]
            archive._arrays = {name: File(**file) for name, file in content["arrays"].items()}
            for file in archive._files:
                size = (folder / file.name).stat().st_size
                if size != file.nbytes:
                    raise ValueError(f"{file.name} has {size:,} bytes instead of {file.nbytes:,}")
        except FileNotFoundError as error:
            raise ReplayError(f"{folder} has no saved replay: no {error.filename}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReplayError(f"the replay saved in {folder} cannot be read: {error}") from error
        return archive

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether a folder has a save, readable or not."""
        return (folder / HEADER).exists()

    @property
    def is_current(self) -> bool:
        """Whether the folder still has the save that this object has written or read."""
        try:
            return (self.folder / HEADER).read_bytes() == self._header
        except OSError:
            return False

    def save(self, facts: dict[str, Any], rings: Rings, arrays: dict[str, NDArray[Any]]) -> None:
        """Save facts (for JSON), entries of rings since the last save, and whole arrays.

        Raises OSError if writing fails; the folder then keeps the previous save, and nothing else.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            before = self._on_disk()
            try:
                self._save(facts, rings, arrays)
            except BaseException:
                self._drop(self._on_disk().keys() - before.keys())
                raise
        except OSError as error:
            raise OSError(
                error.errno,
                f"the replay cannot be saved to {self.folder}: {error}; a replay that was saved"
                " there before is unchanged",
            ) from error

    def fill(self, rings: Rings, arrays: dict[str, NDArray[Any]]) -> None:
        """Read the save into rings and arrays of the same shapes.

        Raises ReplayError if a file is damaged; rings and arrays are then partly overwritten.
        """
        for file in self._rows:
            self._read(file, _pieces(rings, file.first, file.end))
        for name, array in arrays.items():
            self._read(self._arrays[name], [array.view(np.uint8).data])
        self._settled, self._shapes = _settled(rings), _shapes(rings)

    def _save(self, facts: dict[str, Any], rings: Rings, arrays: dict[str, NDArray[Any]]) -> None:
        number = 1 + max(self._on_disk().values(), default=0)
        # If a store has changed from frames to whole images, the old files have other arrays.
        before, settled = (
            (self._rows, self._settled) if self._shapes == _shapes(rings) else ([], {})
        )
        first = {
            name: np.maximum(group[0].first, settled.get(name, 0)) for name, group in rings.items()
        }
        # The observation after the last action is written again only if the column has new rows.
        new = {
            name: np.where(settled.get(name, -1) == group[0].settled, 0, group[0].end - first[name])
            for name, group in rings.items()
        }
        parts = math.ceil(PARTS * new["rows"].sum() / len(rings["rows"][0].data))
        needed = [file for file in before if not _is_obsolete(file, rings)]

        def write(part: int) -> File:
            start, stop = (
                {name: (first[name] + new[name] * at // parts).tolist() for name in rings}
                for at in (part, part + 1)
            )
            path = self.folder / f"rows-{number + part:08}.raw"
            return _write(path, _pieces(rings, start, stop), start, stop)

        needed += _by_threads(write, parts)
        saved = {
            name: _write(
                self.folder / f"{name}-{number:08}.raw", [array.view(np.uint8).data], {}, {}
            )
            for name, array in arrays.items()
        }
        saves = 1 + (self.number or _number(self.folder))
        content = {
            "format": FORMAT,
            "number": saves,
            "facts": facts,
            "rows": [asdict(file) for file in needed],
            "arrays": {name: asdict(file) for name, file in saved.items()},
        }
        header = _text({"crc": zlib.crc32(_text(content)), "content": content})
        durable.write(self.folder / HEADER, [header])
        self.facts, self._header, self._rows, self._arrays = facts, header, needed, saved
        self.number = saves
        self._settled, self._shapes = _settled(rings), _shapes(rings)
        names = {file.name for file in self._files}
        for path in self._on_disk():
            if path.name not in names:
                path.unlink()

    def _drop(self, paths: Iterable[Path]) -> None:
        """Delete the files of a failed save, unless its header is already in place."""
        try:
            named = (self.folder / HEADER).read_text()
        except OSError:
            named = ""
        for path in paths:
            if path.name not in named:
                path.unlink(missing_ok=True)
        (self.folder / f"{HEADER}.tmp").unlink(missing_ok=True)

    def _read(self, file: File, pieces: Iterable[memoryview]) -> None:
        crc = 0
        try:
            with (self.folder / file.name).open("rb") as raw:
                for piece in pieces:
                    raw.readinto(piece)
                    crc = zlib.crc32(piece, crc)
        except OSError as error:
            raise ReplayError(
                f"the replay saved in {self.folder} cannot be read: {error}"
            ) from error
        if crc != file.crc:
            raise ReplayError(
                f"the replay saved in {self.folder} is damaged: the checksum of {file.name} is"
                " wrong"
            )

    @property
    def _files(self) -> list[File]:
        return [*self._rows, *self._arrays.values()]

    def _on_disk(self) -> dict[Path, int]:
        """Return the files of all saves, finished or not, and their numbers."""
        found = ((path, WRITTEN.fullmatch(path.name)) for path in self.folder.iterdir())
        return {path: int(match[1]) for path, match in found if match}


def _by_threads(write: Callable[[int], File], parts: int) -> list[File]:
    """Write all parts.  Raises the first error.

    It does not use a ThreadPoolExecutor, which takes no work once the main thread has ended: the
    run may be in another thread.
    """
    pending, files, errors = iter(range(parts)), dict[int, File](), list[BaseException]()

    def work() -> None:
        try:
            for part in pending:
                files[part] = write(part)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(min(WRITERS, parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [files[part] for part in range(parts)]


def _pieces(
    rings: Rings, first: dict[str, list[int]], end: dict[str, list[int]]
) -> Iterator[memoryview]:
    for name, group in rings.items():
        for ring in group:
            yield from ring.pieces(first[name], end[name])


def _write(
    path: Path,
    pieces: Iterable[memoryview],
    first: dict[str, list[int]],
    end: dict[str, list[int]],
) -> File:
    nbytes = crc = 0

    def counted() -> Iterator[memoryview]:
        nonlocal nbytes, crc
        for piece in pieces:
            nbytes += piece.nbytes
            crc = zlib.crc32(piece, crc)
            yield piece

    durable.write(path, counted())
    return File(path.name, nbytes, crc, first, end)


def _number(folder: Path) -> int:
    """Return the number of saves to a folder by other objects; 0 if it cannot be read."""
    try:
        return Archive.read(folder).number
    except ReplayError:
        return 0


def _settled(rings: Rings) -> dict[str, NDArray[np.int64]]:
    return {name: group[0].settled.copy() for name, group in rings.items()}


def _shapes(rings: Rings) -> dict[str, list[tuple[int, ...]]]:
    return {name: [ring.data.shape for ring in group] for name, group in rings.items()}


def _is_obsolete(file: File, rings: Rings) -> bool:
    """Whether all entries of a file have been dropped; it may have none of some columns."""
    return all(
        ((end <= group[0].first) | (end == file.first[name])).all()
        for name, group in rings.items()
        for end in [np.array(file.end[name])]
    )


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()
