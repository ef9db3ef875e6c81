"""The trials, the harm that they do, and the results of running them n times."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """`wrong` is empty if every promise held; with no failure in n, the rate is below 3/n."""

    n: int
    seconds: float
    told: str
    wrong: list[str]


@contextmanager
def harmed(after_s: float, harm: Callable[[], object]) -> Iterator[None]:
    """Do harm during the block, after this time.  Raises what `harm` raises: a trial in which
    nothing was harmed has shown nothing."""

    def do() -> None:
        time.sleep(after_s)
        harm()

    with ThreadPoolExecutor(1) as pool:
        harming = pool.submit(do)
        yield
    harming.result()


class Trial(NamedTuple):
    """A trial that runs `n` times for the published figures.

    `run(n, seed, folder)` runs it n times, in an empty folder.
    """

    n: int
    run: Callable[[int, int, Path], Finding]
