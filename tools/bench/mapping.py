"""The work of an executor: `map` of empty functions and of functions of 10 ms."""

import time
from concurrent.futures import Executor

from tools.bench import stopwatch
from tools.bench.stopwatch import Effort, report

PROCESSES = 4
WORK_S = 0.01
CHUNK = 100


def add_one(number: int) -> int:
    return number + 1


def work(number: int) -> int:
    time.sleep(WORK_S)
    return number


def measure(executor: Executor, effort: Effort) -> None:
    """Report the seconds per call of a map."""

    def tiny(count: int) -> None:
        for _ in executor.map(add_one, range(count)):
            pass

    def in_chunks(count: int) -> None:
        for _ in executor.map(add_one, range(count), chunksize=CHUNK):
            pass

    def works(count: int) -> None:
        for _ in executor.map(work, range(count)):
            pass

    calls, repeats = effort.pipelined, effort.repeats
    report(
        map_s=stopwatch.per_call(tiny, calls, repeats),
        map_chunked_s=stopwatch.per_call(in_chunks, 10 * calls, repeats),
        map_10ms_s=stopwatch.per_call(works, effort.calls // 2, repeats),
    )
