"""Columns of a metrics.csv as series for a chart: downsampled, in little memory, from any row on.

A metrics.csv of a million rows has 200 MB, a chart a thousand pixels.  So a file is read twice:
first to count its rows, then in buckets of consecutive rows.  Of each bucket and column only the
lowest and the highest value are kept, in their order, which look like a line through all of them.
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
BATCH = 256  # rows that are parsed together
TAIL = 1 << 14  # bytes at the end that are searched for the last row
MAX_HEAD = 1 << 16
MAX_POINTS = 4000
STEPS, SECONDS = "time/env_steps", "time/seconds"
OVER = (STEPS, SECONDS)  # the x axes: columns that only increase

Number = float | None  # None for NaN, which JSON lacks
Buckets = Callable[[str, Sequence[float]], list[Number]]


class Piece(NamedTuple):
    """Part of a metrics.csv.  The next part starts at `next_byte` of `file`."""

    columns: list[str]  # all columns of the file
    rows: int  # number of rows read
    series: dict[str, list[Number]]  # by column, all of the same length
    file: str  # an identity, which changes if the file is replaced
    next_byte: int
    is_whole: bool  # whether it starts at the first row


def plain(number: float | None) -> Number:
    """Return a number that JSON can hold; None for NaN and infinity."""
    return number if number is not None and math.isfinite(number) else None


def columns_of(file: BinaryIO) -> tuple[list[str], int]:
    """Return the names of the columns, and the offset of the first row."""
    file.seek(0)
    head = b""
    while not head or head.count(b'"') % 2:  # within quotes, a name goes on in the next line
        line = file.readline(MAX_HEAD - len(head))
        if not line.endswith(b"\n"):
            return [], 0
        head += line
    text = io.StringIO(head.decode("utf-8", "replace"), newline="")
    return next(csv.reader(text), []), len(head)


def last_row(file: BinaryIO) -> dict[str, float]:
    """Return the numbers of the last complete row; empty if there is none."""
    columns, begin = columns_of(file)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(begin, size - TAIL))
    for line in reversed(file.read().split(b"\n")[:-1]):
        cells = line.rstrip(b"\r").split(b",")
        if columns and len(cells) == len(columns):
            return dict(zip(columns, map(_number, cells), strict=True))
    return {}


def extremes(column: str, numbers: Sequence[float]) -> list[Number]:
    """Return two values of a bucket: the first and last of an x axis, else the extremes."""
    if column in OVER:
        return [plain(numbers[0]), plain(numbers[-1])]
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return [None, None]
    low, high = min(finite), max(finite)
    return [low, high] if finite.index(low) <= finite.index(high) else [high, low]


def last(column: str, numbers: Sequence[float]) -> list[Number]:
    """Return the last finite value of a bucket: for curves that are means already."""
    return [next((number for number in reversed(numbers) if math.isfinite(number)), None)]


def read(
    file: BinaryIO,
    wanted: Sequence[str] = (),
    points: int = 400,
    known_file: str = "",
    from_byte: int = 0,
    bucket: Buckets = extremes,
) -> Piece:
    """Return at most `points` values of each wanted column, by default of all.

    Starts at `from_byte` if `known_file` is still the same file, else at the first row.  An
    incomplete last row is left for the next call.
    """
    columns, begin = columns_of(file)
    status = os.fstat(file.fileno())
    identity = f"{status.st_dev}-{status.st_ino}"
    continues = known_file == identity and begin <= from_byte <= status.st_size
    begin = from_byte if continues else begin
    rows, end = count_lines(file, begin)
    names = [name for name in (wanted or columns) if name in columns]
    kept = len(bucket("", [0.0]))  # values per bucket
    points = min(max(points, 2), MAX_POINTS)
    width = 1 if rows <= points else math.ceil(rows / (points // kept))
    file.seek(begin)
    series = _downsampled(itertools.islice(file, rows), columns, names, width, bucket)
    return Piece(columns, rows, series, identity, end, not continues)


def count_lines(file: BinaryIO, begin: int) -> tuple[int, int]:
    """Return the number of complete lines from `begin`, and the end of the last one."""
    file.seek(begin)
    rows, end, at = 0, begin, begin
    while chunk := file.read(CHUNK):
        if lines := chunk.count(b"\n"):
            rows += lines
            end = at + chunk.rindex(b"\n") + 1
        at += len(chunk)
    return rows, end


def _downsampled(
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
    """Return the numbers of the next `width` rows, by column; empty if there are no more.

    They are doubles, because the cells of a bucket with thousands of rows take ten times as much.
    """
    cuts = max(places, default=0) + 1  # the rest of the line is not split
    columns = [array("d") for _ in places]
    left = width
    while left > 0 and (batch := list(itertools.islice(lines, min(left, BATCH)))):
        left -= len(batch)
        cells = [line.rstrip().split(b",", cuts) for line in batch]
        whole = [row for row in cells if len(row) >= cuts]  # a crash may have cut a row short
        for numbers, place in zip(columns, places, strict=True):
            numbers.extend([_number(row[place]) for row in whole])
    return columns if left < width else []


def _number(cell: bytes) -> float:
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        return math.nan
