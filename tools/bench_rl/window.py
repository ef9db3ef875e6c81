"""The arguments and the time window of a turn, with the standard library only.

A turn's part names an algorithm and the side of the image: `a2c_84`.
"""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tools.bench.benchmark import LIMIT_S
from tools.bench.stopwatch import Meter


class Window(NamedTuple):
    warm_up_s: float  # from the first update
    for_s: float

    def meter(self) -> Meter:
        return Meter(self.for_s, self.warm_up_s)


FULL = Window(warm_up_s=5.0, for_s=20.0)
QUICK = Window(warm_up_s=2.0, for_s=5.0)


class Asked(NamedTuple):
    what: str
    size: int  # the number in the part's name
    window: Window
    is_quick: bool
    device: str
    limit_s: float  # the end of the turn

    @property
    def figure(self) -> str:
        return f"{self.what}_{self.size}_per_s"


def asked() -> Asked:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    given = parser.parse_args()
    what, _, size = given.part.rpartition("_")
    window = QUICK if given.quick else FULL
    return Asked(what, int(size), window, given.quick, given.device, given.limit)


def cores() -> int:
    return os.cpu_count() or 1


@contextlib.contextmanager
def busy_process(is_busy: bool = True) -> Iterator[None]:
    """Run a process that takes a core during the block, if `is_busy`."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if is_busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()
