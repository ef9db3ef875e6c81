"""Images and histograms of a run, beside those for TensorBoard, in `media/` of its folder.

    NAME@STEP.png       an image; the newest MOST_IMAGES of each name are kept
    NAME.jsonl          a histogram in each line: its step, its quantiles, and the counts of BINS
                        bins of equal width.  At MOST_LINES every second line is dropped, and from
                        then on every second histogram, so that a run of weeks does not fill the
                        disk and its first ones stay

A name is quoted as in a URL, so it may have any characters.
"""

import hashlib
import json
import re
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remotely_rl import durable

FOLDER = "media"
MOST_IMAGES = 20
MOST_LINES = 400
BINS = 30
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
IMAGE = re.compile(r"(.+)@(\d+)\.png")
LONGEST = 180  # bytes of a quoted name; a file's has 255
LARGEST, SMALLEST = 1e300, 1e-300  # the width of a bin is a number, and not zero
NARROWEST = 1e-9  # of the numbers: between nearer ones there are too few others for bins


class Media:
    """Writes the media of a run.  Raises OSError if the disk is full."""

    def __init__(self, folder: Path, from_step: int = 0) -> None:
        """Drop what is from step `from_step` on, which the checkpoint of a resumed run lacks."""
        self._folder = folder / FOLDER
        self._every: dict[str, int] = {}  # by file: only each of so many is kept
        self._seen: dict[str, int] = {}  # by file: histograms that were given
        self._lines: dict[str, int] = {}
        for image in images(self._names()):
            if image.step >= from_step:
                (self._folder / image.file).unlink(missing_ok=True)
        for file in self._names():
            if file.endswith(".jsonl"):
                lines = self._read(file)
                kept = [line for line in lines if json.loads(line)["step"] < from_step]
                self._lines[file] = len(kept)
                if len(kept) < len(lines):
                    self._write(file, kept)

    def image(self, name: str, picture: NDArray[Any], step: int) -> None:
        """Write an image, [height, width, 1, 3 or 4], of bytes or of floats from 0 to 1."""
        from PIL import Image  # noqa: PLC0415 - the dashboard needs none

        if picture.dtype.kind == "f":
            picture = np.clip(picture, 0.0, 1.0) * 255
        pixels = picture.astype(np.uint8)
        self._folder.mkdir(exist_ok=True)
        named = quoted(name)
        path = self._folder / f"{named}@{step}.png"
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path)
        old = sorted(image for image in images(self._names()) if image.name == named)
        for image in old[:-MOST_IMAGES]:
            (self._folder / image.file).unlink(missing_ok=True)

    def histogram(self, name: str, values: NDArray[Any], step: int) -> None:
        """Write the histogram of finite numbers [n]."""
        file = f"{quoted(name)}.jsonl"
        self._seen[file] = self._seen.get(file, 0) + 1
        if (self._seen[file] - 1) % self._every.get(file, 1):
            return
        values = np.clip(values, -LARGEST, LARGEST)
        counts, edges = _bins(values)
        shape = [float(f"{number:.6g}") for number in np.quantile(values, QUANTILES)]
        ends = [float(edges[0]), float(edges[-1])]
        content = {"step": step, "quantiles": shape, "ends": ends, "counts": counts.tolist()}
        self._folder.mkdir(exist_ok=True)
        with (self._folder / file).open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(content) + "\n")
        self._lines[file] = self._lines.get(file, 0) + 1
        if self._lines[file] >= MOST_LINES:
            kept = self._read(file)[::2]
            self._write(file, kept)
            self._lines[file] = len(kept)
            self._every[file] = 2 * self._every.get(file, 1)

    def _names(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        return [path.name for path in self._folder.iterdir()]

    def _read(self, file: str) -> list[str]:
        text = (self._folder / file).read_text(encoding="utf-8")
        return [line for line in text.splitlines() if parsed(line) is not None]

    def _write(self, file: str, lines: Iterable[str]) -> None:
        text = "".join(f"{line}\n" for line in lines)
        durable.write(self._folder / file, [text.encode()])


class ImageFile(NamedTuple):
    """An image in the folder; images sort by their steps."""

    step: int
    name: str  # quoted
    file: str


def images(files: Iterable[str]) -> list[ImageFile]:
    """Return the images among the names of files."""
    return [
        ImageFile(int(match[2]), match[1], file)
        for file in files
        if (match := IMAGE.fullmatch(file))
    ]


def _bins(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return counts, and the edges of their bins, of finite numbers up to LARGEST."""
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    if low == high:
        low, high = low - max(0.5, NARROWEST * size), high + max(0.5, NARROWEST * size)
    elif high - low < NARROWEST * size + SMALLEST:  # they differ by rounding
        least = NARROWEST * size + SMALLEST
        low, high = low - least, high + least
    return np.histogram(values, BINS, (low, high))


def quoted(name: str) -> str:
    """Return a name as that of a file; of a long one its beginning, and a digest of the whole."""
    whole = urllib.parse.quote(name, safe="")
    if len(whole) <= LONGEST:
        return whole
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    begin = re.sub(r"%.?$", "", whole[: LONGEST - len(digest) - 1])  # no part of an escape
    return f"{begin}-{digest}"


def unquoted(name: str) -> str:
    """Return what `quoted` was given."""
    return urllib.parse.unquote(name)


def parsed(line: str | bytes) -> dict[str, Any] | None:
    """Parse a line of a histogram; None if a crash has cut it off."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "step" in found else None
