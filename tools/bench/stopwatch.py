"""Timings of every system, with only the standard library and numpy.

A system's process measures one part and prints each figure as a line of JSON, which program.py
collects.  A figure's name ends in its SI unit:

    _s   _per_s   _bytes   _bytes_per_s   _share (of one core)   _steps

A timing is repeated and its median counts.
"""

import json
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Effort(NamedTuple):
    repeats: int  # timings of a figure
    calls: int  # blocking calls in a timing
    pipelined: int  # calls in a timing that do not wait for each other
    broadcasts: int  # calls to a group in a timing
    echo_bytes: int  # about the bytes of echoes in a timing
    stream_s: float
    idle_s: float


FULL = Effort(5, 1000, 3000, 5, 500_000_000, stream_s=3.0, idle_s=10.0)
QUICK = Effort(3, 300, 1000, 2, 20_000_000, stream_s=1.0, idle_s=2.0)

ECHOES = {
    "100kb": 100_000,
    "1mb": 1_000_000,
    "10mb": 10_000_000,
    "100mb": 100_000_000,
}


def main(parts: Mapping[str, Callable[[Effort], None]]) -> None:
    """Measure the part that the command line names."""
    part, *words = sys.argv[1:]
    parts[part](QUICK if "--quick" in words else FULL)


def report(repeat: int = 0, /, **figures: float) -> None:
    """Print figures; `repeat` numbers the values of one figure."""
    for name, value in figures.items():
        print(json.dumps({"figure": name, "value": value, "repeat": repeat}), flush=True)


def report_missing(why: str, *figures: str) -> None:
    """Print why figures could not be measured."""
    for name in figures:
        print(json.dumps({"figure": name, "why": why}), flush=True)


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def per_call(run: Callable[[int], object], count: int, repeats: int) -> float:
    """Return the seconds per call, where `run(n)` makes n calls; the first run is not timed."""
    run(min(count, 200))
    return statistics.median(seconds(lambda: run(count)) / count for _ in range(repeats))


def echoes(run: Callable[[Array, int], object], effort: Effort, largest: int = 100_000_000) -> None:
    """Report the round trip of each array, where `run(array, n)` sends it n times."""
    for size, count_of_bytes in ECHOES.items():
        if count_of_bytes > largest:
            break
        array = random_bytes(count_of_bytes)
        count = max(1, min(100, effort.echo_bytes // count_of_bytes))
        run(array, count)
        timings = [seconds(lambda: run(array, count)) for _ in range(effort.repeats)]  # noqa: B023 - called at once
        report(**{f"echo_{size}_s": statistics.median(timings) / count})


def random_bytes(count: int) -> Array:
    """Return an array of random bytes, so that each of its pages is in memory."""
    return np.random.default_rng(0).integers(0, 256, count, dtype=np.uint8)


def parameters() -> dict[str, Array]:
    """Return the values of a broadcast: 20 arrays, 8 MB in total."""
    generator = np.random.default_rng(0)
    return {f"layer{i}": generator.standard_normal(100_000, np.float32) for i in range(20)}


def trajectory() -> dict[str, Array]:
    """Return an item of a stream: 1,000 observations of four 84x84 images, 28 MB in total."""
    return {
        "obs": random_bytes(1000 * 4 * 84 * 84).reshape(1000, 4, 84, 84),
        "action": random_bytes(1000),
        "done": np.zeros(1000, np.uint8),
    }


def size_of(arrays: Mapping[Any, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Meter:
    """A counter of bytes, or other units, for `for_s` seconds after a warm-up of `after_s`."""

    def __init__(self, for_s: float, after_s: float | None = None) -> None:
        """Begin at the first arrival after `after_s` seconds, by default `for_s`."""
        self._for_s = for_s
        self._after_s = for_s if after_s is None else after_s
        self._arrived: float | None = None
        self._first: float | None = None
        self._count = 0
        self.per_s = 0.0

    def runs_on(self, count: int) -> bool:
        """Count an arrival now; return whether time is left."""
        now = time.perf_counter()
        if self._arrived is None:
            self._arrived = now
        if self._first is None:
            if now >= self._arrived + self._after_s:
                self._first = now
            return True
        self._count += count
        self.per_s = self._count / (now - self._first)
        return now - self._first < self._for_s
