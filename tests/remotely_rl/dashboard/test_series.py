"""Series of a metrics.csv: compared with a reader of the whole file, and while it grows."""

import csv
import math
import random
import tracemalloc
from pathlib import Path

import pytest

from remotely_rl.dashboard import series
from remotely_rl.runs.metrics import COLUMNS, Writer
from remotely_rl.runs.metrics import read as read_rows

STEPS, RETURN, LOSS = "time/env_steps", "rollout/return_mean", "train/loss"
HEAD = f"{STEPS},{RETURN},{LOSS}\r\n"


def written(path: Path, rows: int, begin: int = 0) -> Path:
    with path.open("a", newline="") as file:
        if begin == 0:
            file.write(HEAD)
        for n in range(begin, begin + rows):
            loss = "" if n % 7 == 0 else f"{math.sin(n / 9):.6g}"
            file.write(f"{n * 10},{n % 13 if n else ''},{loss}\r\n")
    return path


def slowly(path: Path, column: str) -> list[float | None]:
    with path.open(newline="") as file:
        return [float(row[column]) if row[column] else None for row in csv.DictReader(file)]


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return tmp_path / "metrics.csv"


def test_few_rows_are_not_downsampled(metrics: Path) -> None:
    written(metrics, 20)
    with metrics.open("rb") as file:
        piece = series.read(file, points=100)
    assert piece.columns == [STEPS, RETURN, LOSS]
    assert piece.rows == 20
    for column in piece.columns:
        assert piece.series[column] == slowly(metrics, column)


def test_many_rows_are_reduced_to_the_extremes_of_each_bucket_in_order(
    metrics: Path,
) -> None:
    written(metrics, 1000)
    with metrics.open("rb") as file:
        piece = series.read(file, points=100)
    width = 20  # rows in a bucket, which keeps two values
    losses, steps = slowly(metrics, LOSS), slowly(metrics, STEPS)
    expected: list[float | None] = []
    for at in range(0, 1000, width):
        numbers = [number for number in losses[at : at + width] if number is not None]
        pair = [min(numbers), max(numbers)]
        expected += pair if numbers.index(pair[0]) <= numbers.index(pair[1]) else pair[::-1]
    assert piece.series[LOSS] == expected
    assert piece.series[STEPS][:4] == [steps[0], steps[19], steps[20], steps[39]]


def test_reading_continues_where_it_stopped_and_leaves_an_incomplete_row(
    metrics: Path,
) -> None:
    written(metrics, 10)
    with metrics.open("rb") as file:
        first = series.read(file)
    written(metrics, 3, begin=10)
    with metrics.open("a") as growing:
        growing.write("130,")
    with metrics.open("rb") as file:
        second = series.read(file, known_file=first.file, from_byte=first.next_byte)
    assert (first.is_whole, second.is_whole, second.rows) == (True, False, 3)
    assert second.series[STEPS] == [100, 110, 120]
    with metrics.open("a") as growing:
        growing.write("7,\r\n")
    with metrics.open("rb") as file:
        third = series.read(file, known_file=second.file, from_byte=second.next_byte)
    assert third.series == {STEPS: [130], RETURN: [7], LOSS: [None]}


def test_a_replaced_file_is_read_from_its_first_row(metrics: Path) -> None:
    written(metrics, 10)
    with metrics.open("rb") as file:
        first = series.read(file)
    other = written(metrics.with_name("new"), 4)
    other.replace(metrics)
    with metrics.open("rb") as file:
        again = series.read(file, known_file=first.file, from_byte=first.next_byte)
    assert (again.is_whole, again.rows) == (True, 4)


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("", 0),
        ("no line end", 0),
        (HEAD, 0),
        (HEAD + "1,2\r\n3,4,5\r\n", 1),  # a line cut off by a crash
        (HEAD + "1,x,\x00\r\n", 1),
        (HEAD + "1,inf,nan\r\n", 1),
        ("\xff\xfe,b\n1,2\n", 1),
    ],
)
def test_a_damaged_file_yields_its_complete_rows(metrics: Path, content: str, rows: int) -> None:
    metrics.write_bytes(content.encode("latin-1"))
    with metrics.open("rb") as file:
        piece = series.read(file)
        last = series.last_row(file)
    assert all(len(values) == rows for values in piece.series.values())
    assert all(
        value is None or math.isfinite(value) for each in piece.series.values() for value in each
    )
    assert bool(last) == bool(rows)


def test_the_last_row_is_read_from_the_end(metrics: Path) -> None:
    written(metrics, 3000)
    with metrics.open("a") as growing:
        growing.write("999999,")
    with metrics.open("rb") as file:
        last = series.last_row(file)
    assert (last[STEPS], last[RETURN]) == (29990, 2999 % 13)


def test_memory_does_not_grow_with_the_rows(metrics: Path) -> None:
    peaks = []
    for rows in (1_000, 10_000):
        metrics.unlink(missing_ok=True)
        written(metrics, rows)
        tracemalloc.start()
        with metrics.open("rb") as file:
            series.read(file, points=200)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + series.CHUNK


def test_downsampling_keeps_the_range_of_a_column(metrics: Path) -> None:
    generator = random.Random(1)
    numbers = [generator.uniform(-5, 5) for _ in range(777)]
    metrics.write_text(f"{LOSS}\n" + "".join(f"{number:.17g}\n" for number in numbers))
    for points in (2, 3, 10, 99, 776, 777, 5000):
        with metrics.open("rb") as file:
            kept = [v for v in series.read(file, points=points).series[LOSS] if v is not None]
        assert (min(kept), max(kept)) == (min(numbers), max(numbers))
        assert len(kept) <= points


def test_a_column_may_have_any_name(tmp_path: Path) -> None:
    names = ["mine/a,b", 'mine/"quoted"', "mine/two\nlines", "mine/carriage\rreturn"]
    writer = Writer(tmp_path)
    for count in range(1, len(names) + 1):
        row = dict.fromkeys(COLUMNS, 1.0) | dict.fromkeys(names[:count], float(count))
        writer.write(row)
    writer.close()
    last = read_rows(tmp_path / "metrics.csv")[-1]
    assert [last[name] for name in names] == [4.0] * 4
    with (tmp_path / "metrics.csv").open("rb") as file:
        assert [series.last_row(file)[name] for name in names] == [4.0] * 4
        piece = series.read(file, names)
    assert piece.rows == 4
    assert piece.series["mine/two\nlines"] == [None, None, 3.0, 4.0]
