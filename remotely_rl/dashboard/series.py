"""Rows of a metrics.csv as series for a picture: thinned, in little memory, from any row on.

A run of a million rows has 200 MB, a picture a thousand pixels.  So a file is read twice, once to
count its rows and once in buckets of neighbours.  A bucket is never larger than a share of the
file, and leaves of each column its lowest and its highest value in the order in which they came, as
a line drawn through all of them would show it.
"""

import csv
import io
import itertools
import math
import os
from array import array
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple

CHUNK = 1 << 18
AT_ONCE = 256  # rows that are cut into cells
TAIL = 1 << 14  # bytes, in which the last row is looked for
MAX_HEAD = 1 << 16
MAX_POINTS = 4000
STEPS, SECONDS = "time/env_steps", "time/seconds"
OVER = (STEPS, SECONDS)  # columns that only grow: the x axes

Number = float | None  # None where there is none, as JSON has it
Buckets = Callable[[str, Sequence[float]], list[Number]]


class Piece(NamedTuple):
    """Part of a metrics.csv.  `file` and `next_byte` say from where the next one goes on."""

    columns: list[str]  # all that the file has
    rows: int  # that this was made of
    series: dict[str, list[Number]]  # by column, all of the same length
    file: str  # another one if the file was written anew
    next_byte: int
    is_whole: bool  # from the first row on


def plain(number: float | None) -> Number:
    """Return a number that JSON can hold; None for NaN and infinity."""
    return number if number is not None and math.isfinite(number) else None


def columns_of(file: BinaryIO) -> tuple[list[str], int]:
    """Return the names of the columns, and where the rows begin."""
    file.seek(0)
    head = file.readline(MAX_HEAD)
    if not head.endswith(b"\n"):
        return [], 0
    return next(csv.reader(io.StringIO(head.decode("utf-8", "replace"))), []), len(head)


def last_row(file: BinaryIO) -> dict[str, float]:
    """Return the numbers of the last whole row; nothing if there is none."""
    columns, begin = columns_of(file)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(begin, size - TAIL))
    for line in reversed(file.read().split(b"\n")[:-1]):
        cells = line.rstrip(b"\r").split(b",")
        if columns and len(cells) == len(columns):
            return dict(zip(columns, map(_number, cells), strict=True))
    return {}


def extremes(column: str, numbers: Sequence[float]) -> list[Number]:
    """Return two values of a bucket: the ends of what only grows, else the lowest and highest."""
    if column in OVER:
        return [plain(numbers[0]), plain(numbers[-1])]
    there = [number for number in numbers if math.isfinite(number)]
    if not there:
        return [None, None]
    low, high = min(there), max(there)
    return [low, high] if there.index(low) <= there.index(high) else [high, low]


def last(column: str, numbers: Sequence[float]) -> list[Number]:
    """Return one value of a bucket, the newest that is there: for curves that are means already."""
    return [next((number for number in reversed(numbers) if math.isfinite(number)), None)]


def read(
    file: BinaryIO,
    wanted: Sequence[str] = (),
    points: int = 400,
    known_file: str = "",
    from_byte: int = 0,
    bucket: Buckets = extremes,
) -> Piece:
    """Return at most `points` values of each wanted column, or of all.

    Begins at `from_byte` if that is where an earlier piece of the same file ended, else at the
    first row.  A row that is being written is left for the next time.
    """
    columns, begin = columns_of(file)
    status = os.fstat(file.fileno())
    identity = f"{status.st_dev}-{status.st_ino}"
    goes_on = known_file == identity and begin <= from_byte <= status.st_size
    begin = from_byte if goes_on else begin
    rows, end = _count(file, begin)
    names = [name for name in (wanted or columns) if name in columns]
    each = len(bucket("", [0.0]))  # values that a bucket leaves
    points = min(max(points, 2), MAX_POINTS)
    width = 1 if rows <= points else math.ceil(rows / (points // each))
    file.seek(begin)
    series = _thinned(itertools.islice(file, rows), columns, names, width, bucket)
    return Piece(columns, rows, series, identity, end, not goes_on)


def _count(file: BinaryIO, begin: int) -> tuple[int, int]:
    """Return how many whole lines follow, and where the last of them ends."""
    file.seek(begin)
    rows, end, at = 0, begin, begin
    while chunk := file.read(CHUNK):
        if lines := chunk.count(b"\n"):
            rows += lines
            end = at + chunk.rindex(b"\n") + 1
        at += len(chunk)
    return rows, end


def _thinned(
    lines: "itertools.islice[bytes]",
    columns: Sequence[str],
    names: Sequence[str],
    width: int,
    bucket: Buckets,
) -> dict[str, list[Number]]:
    series: dict[str, list[Number]] = {name: [] for name in names}
    places = [columns.index(name) for name in names]
    while bucketful := _bucketful(lines, width, places):
        for name, numbers in zip(names, bucketful, strict=True):
            if not numbers:
                continue
            if width == 1:
                series[name].append(plain(numbers[0]))
            else:
                series[name] += bucket(name, numbers)
    return series


def _bucketful(
    lines: "itertools.islice[bytes]", width: int, places: Sequence[int]
) -> list["array[float]"]:
    """Return the numbers of the next `width` rows, by column; nothing if there are no more.

    As doubles: a bucket may have thousands of rows, and as cells these take ten times as much.
    """
    cuts = max(places, default=0) + 1  # what is behind the last wanted cell is not cut up
    columns = [array("d") for _ in places]
    left = width
    while left > 0 and (some := list(itertools.islice(lines, min(left, AT_ONCE)))):
        left -= len(some)
        cells = [line.rstrip().split(b",", cuts) for line in some]
        whole = [row for row in cells if len(row) >= cuts]  # of the others a crash cut one short
        for numbers, place in zip(columns, places, strict=True):
            numbers.extend([_number(row[place]) for row in whole])
    return columns if left < width else []


def _number(cell: bytes) -> float:
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        return math.nan
