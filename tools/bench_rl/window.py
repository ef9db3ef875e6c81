"""What a turn is told, and how long it measures; standard library alone, for any environment.

A turn's part names what it runs and the height and width of the image: `a2c_84`.
"""

import os
import sys
from typing import NamedTuple

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
    size: int
    window: Window

    @property
    def figure(self) -> str:
        return f"{self.what}_{self.size}_per_s"


def asked() -> Asked:
    """Return what the command line asks for."""
    part, *words = sys.argv[1:]
    what, _, size = part.rpartition("_")
    return Asked(what, int(size), QUICK if "--quick" in words else FULL)


def cores() -> int:
    return os.cpu_count() or 1
