"""What something that was done n times has shown."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """`wrong` is empty if every promise held.  Tell n with it: none in n bounds the rate by 3/n."""

    n: int
    seconds: float
    told: str
    wrong: list[str]


class Trial(NamedTuple):
    """Something to be done `n` times for the published figures.

    `run(n, seed, folder)` does it, in an empty folder of its own.
    """

    n: int
    run: Callable[[int, int, Path], Finding]
