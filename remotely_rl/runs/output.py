"""What a run writes: rows of metrics, checkpoints and the curve in its folder, lines for the user.

If the disk is full, or gone for a while, the user is told once and training continues.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remotely_rl.config import Common
from remotely_rl.runs import checkpoint, curve, metrics
from remotely_rl.runs.metrics import Row
from remotely_rl.runs.progress import Progress
from remotely_rl.runs.run_folder import RunFolder


class Output:
    """See the module's docstring.  `recorder.py` decides when to write."""

    def __init__(
        self,
        folder: RunFolder,
        title: str,
        config: Common,
        resumed_at_s: float | None = None,
        progress: Progress | None = None,
    ):
        """Drops rows after `resumed_at_s`: the checkpoint does not include them."""
        self.folder = folder
        self.title = title
        self._writer = metrics.Writer(folder.path, resumed_at_s)
        self._progress = progress or Progress(f"{title}, in {folder.path}", config)
        self._unwritten: set[Path] = set()  # files whose last write failed

    def say(self, text: str) -> None:
        """Prints a line for the user, which stays above the live table."""
        self._progress.say(text)

    def add(self, row: Row) -> None:
        """Writes a row of metrics, and shows it."""
        with self._disk(self.folder.metrics):
            self._writer.write(row)
        self._progress.show(row)

    def save(self, path: Path, content: dict[str, Any]) -> bool:
        """Writes a checkpoint; returns whether it is written."""
        with self._disk(path):
            checkpoint.save(path, content)
        return path not in self._unwritten

    def draw(self) -> None:
        """Draws the curve of all rows."""
        with self._disk(self.folder.curve):
            curve.draw(self.folder.metrics, self.folder.curve, self.title)

    def close(self) -> None:
        """Closes the files and leaves the last table standing; `say` still works."""
        with self._disk(self.folder.metrics):
            self._writer.close()
        self._progress.close()

    @contextmanager
    def _disk(self, path: Path) -> Iterator[None]:
        """Tells the user once of writes that fail, and lets training continue."""
        try:
            yield
        except OSError as error:
            if not self._unwritten:
                self.say(f"cannot write to {self.folder.path}: {error.strerror or error}; going on")
            self._unwritten.add(path)
        else:
            before = bool(self._unwritten)
            self._unwritten.discard(path)
            if path == self.folder.checkpoint:  # best.pt is as large, and waits for a better return
                self._unwritten.discard(self.folder.best)
            if before and not self._unwritten:
                self.say(f"{self.folder.path} can be written to again")
