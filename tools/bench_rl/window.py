"""The words of a turn, and its time; standard library alone, for any environment.

A turn's part names what it runs and the height and width of the image: `a2c_84`.
"""

import argparse
import os
from typing import NamedTuple

from tools.bench.benchmark import LIMIT_S
from tools.bench.stopwatch import Meter


class Window(NamedTuple):
    warm_up_s: float  # from the first update, or the like, on
    for_s: float

    def meter(self) -> Meter:
        return Meter(self.for_s, self.warm_up_s)


FULL = Window(warm_up_s=5.0, for_s=20.0)
QUICK = Window(warm_up_s=2.0, for_s=5.0)


class Asked(NamedTuple):
    what: str
    size: int  # or what else the number behind the part's name is
    window: Window
    is_quick: bool
    device: str
    limit_s: float  # after which the turn is ended

    @property
    def figure(self) -> str:
        return f"{self.what}_{self.size}_per_s"


def asked() -> Asked:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    words = parser.parse_args()
    what, _, size = words.part.rpartition("_")
    window = QUICK if words.quick else FULL
    return Asked(what, int(size), window, words.quick, words.device, words.limit)


def cores() -> int:
    return os.cpu_count() or 1
