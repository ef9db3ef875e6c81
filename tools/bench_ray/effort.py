"""The timing of a microbenchmark, as Ray's own: how many times a second something is done.

Ray's times each for 2 seconds, four times over; here a turn's share is smaller, and rounds repeat
it.
"""

import os
import time
from collections.abc import Callable

from tools.bench.stopwatch import Effort, report

BATCH = 1_000  # calls of an "async" benchmark, as Ray's
CALLS_OF_CLIENT = 1_000  # Ray's 5,000 and 10,000, for machines with 64 cores
CLIENTS = 4  # of "multi client" and "n:n", as Ray's `m`
ACTORS = max(1, (os.cpu_count() or 1) // 2)  # "n", as Ray's
LARGE_BYTES = 800 * 1024 * 1024  # of `single_client_put_gigabytes`, as Ray's
PIECE_BYTES = 80 * 1024 * 1024  # of `multi_client_put_gigabytes`, as Ray's
GIGABYTE = 8 * 0.1  # what Ray counts for LARGE_BYTES


def timed(
    effort: Effort, name: str, run: Callable[[], object], each: float = 1, unit: str = "per_s"
) -> None:
    """Report how many times a second `run` does something, of which it does `each`."""
    run()
    begin, count = time.perf_counter(), 0
    while (took := time.perf_counter() - begin) < effort.stream_s / 2 or not count:
        run()
        count += 1
    report(**{f"{name}_{unit}": count * each / took})
