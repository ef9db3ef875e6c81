"""The trials, and the results of running them n times."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """`wrong` is empty if every promise held; with no failure in n, the rate is below 3/n."""

    n: int
    seconds: float
    told: str
    wrong: list[str]


class Trial(NamedTuple):
    """A trial that runs `n` times for the published figures.

    `run(n, seed, folder)` runs it n times, in an empty folder.
    """

    n: int
    run: Callable[[int, int, Path], Finding]
