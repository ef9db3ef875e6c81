"""The run folders below one folder, with access to nothing outside it.

The names of runs come from a browser.  A name must resolve, with symlinks, to a folder inside the
root, and files in it are opened without following symlinks.  So a run folder, or a metrics.csv,
that links elsewhere is refused.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from remotely_rl.dashboard import series
from remotely_rl.errors import TrainingError
from remotely_rl.runs import media, notes, run_folder, status
from remotely_rl.runs.run_folder import RunConfig

DEPTH = 3  # levels of folders below the root that are searched
VIDEOS = (".mp4", ".webm")
MAX_CONFIG_BYTES = 1 << 20
LAST = {  # columns of the last row that the list shows
    "seconds": "time/seconds",
    "steps": "time/env_steps",
    "steps_per_s": "time/steps_per_second",
    "episodes": "rollout/episodes",
    "return_mean": "rollout/return_mean",
    "return_max": "rollout/return_max",
}
COLUMNS = {  # of the list, and the headers that runs.js shows
    "updated": "Last row",
    "name": "Run",
    "algorithm": "Algorithm",
    "env": "Environment",
    "seed": "Seed",
    "state": "State",
    "tags": "Tags",
    "steps": "Steps",
    "seconds": "Time",
    "steps_per_s": "Steps/s",
    "episodes": "Episodes",
    "return_mean": "Return",
    "return_max": "Max",
}


class NoRun(LookupError):
    """There is no such run, or no such file of it."""


class Summary(NamedTuple):
    """A run in the list, cached for one version of its files."""

    version: tuple[int, ...]  # modification times and sizes
    row: dict[str, Any]
    config: RunConfig


class Runs:
    """The runs below `root`, or `root` itself if it is a run."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._known: dict[str, Summary] = {}

    # --- names ------------------------------------------------------------------------------------

    def folder(self, name: str) -> Path:
        """Return the folder of a run.  Raises NoRun, also for a name that leads out of the root."""
        parts = name.split("/")
        if not name or "\0" in name or {"", ".", ".."} & set(parts):
            raise NoRun(f"{name!r} is not the name of a run")
        path = self.root if self._is_run and name == self.root.name else self.root / name
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(self.root):
            raise NoRun(f"{name!r} leads out of the folder of the runs")
        if not os.path.isfile(real / "config.json"):  # Path.is_file raises if the name is too long
            raise NoRun(f"there is no run {name!r} here")
        return real

    def open(self, name: str, file: str, inside: str | None = None) -> BinaryIO:
        """Open a file of a run, or of the folder `inside` it.

        Raises NoRun if it is not a regular file there.
        """
        if "/" in file or file in ("", ".", ".."):
            raise NoRun(f"{file!r} is not the name of a file")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            if inside is None:
                fd = os.open(self.folder(name) / file, flags)
            else:
                folder = os.open(self.folder(name) / inside, flags | os.O_DIRECTORY)
                try:
                    fd = os.open(file, flags, dir_fd=folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise NoRun(f"{file} of {name!r} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NoRun(f"{file} of {name!r} is not a file")
        return os.fdopen(fd, "rb")

    @property
    def _is_run(self) -> bool:
        return (self.root / "config.json").is_file()

    def names(self) -> Iterator[str]:
        """Yield the names of the runs, without following symlinks."""
        if self._is_run:
            yield self.root.name
            return
        for folder, below, files in os.walk(self.root):
            relative = os.path.relpath(folder, self.root)
            if "config.json" in files and relative != ".":
                below.clear()
                yield relative
            elif relative.count(os.sep) >= DEPTH - 1:
                below.clear()

    # --- content ----------------------------------------------------------------------------------

    def config(self, name: str) -> RunConfig:
        with self.open(name, "config.json") as file:
            return run_folder.parsed(file.read(MAX_CONFIG_BYTES), Path(name) / "config.json")

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run that can be read."""
        rows = []
        for name in self.names():
            try:
                rows.append(self.row(name))
            except (NoRun, TrainingError, OSError):
                continue  # another program's, not complete yet, or just removed
        return rows

    def settings(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the settings of runs whose rows were read, as they were asked for."""
        return {name: self._known[name].config.as_asked for name in names}

    def row(self, name: str) -> dict[str, Any]:
        """Return the row of a run in the list."""
        folder = self.folder(name)
        found = status.of(folder, lambda: self._summary(name, folder).config)
        summary = self._summary(name, folder)
        commands = {"go_on": found.go_on, "start_anew": found.start_anew}
        return {**summary.row, "state": found.how, "why": found.why, **commands}

    def _summary(self, name: str, folder: Path) -> Summary:
        version: list[int] = []
        for file in (folder / "config.json", folder / "metrics.csv", folder / notes.NAME):
            try:
                status = os.lstat(file)
            except FileNotFoundError:
                version += (0, 0)
            else:
                version += (status.st_mtime_ns, status.st_size)
        known = self._known.get(name)
        if known is None or known.version != tuple(version):
            known = self._known[name] = self._read(name, tuple(version))
        return known

    def _read(self, name: str, version: tuple[int, ...]) -> Summary:
        run = self.config(name)
        last: dict[str, float] = {}
        if version[2]:  # metrics.csv exists
            with self.open(name, "metrics.csv") as file:
                last = series.last_row(file)
        try:
            with self.open(name, notes.NAME) as file:
                noted = notes.parsed(file.read(notes.MAX_BYTES)) or notes.Notes()
        except NoRun:
            noted = notes.Notes()
        row = {
            "name": name,
            "algorithm": run.algorithm,
            "env": run.env,
            "seed": run.config.get("seed"),
            "tags": " ".join(noted.tags),
            "note": noted.text,
            "updated": max(version[0], version[2]) / 1e9,
            **{key: series.plain(last.get(column)) for key, column in LAST.items()},
        }
        return Summary(version, row, run)

    def media(self, name: str) -> list[str]:
        """Return the names of the images and histograms of a run."""
        folder = self.folder(name) / media.FOLDER
        if folder.is_symlink() or not folder.is_dir():
            return []
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def videos(self, name: str) -> list[str]:
        """Return the names of the videos in the folder of a run."""
        with os.scandir(self.folder(name)) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name.endswith(VIDEOS) and entry.is_file(follow_symlinks=False)
            )
