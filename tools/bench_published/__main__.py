"""Published values beside plain copies and the other ways in which parameters reach actors.

    python -m tools.bench_published            all rows; 6 GiB of memory
    python -m tools.bench_published --quick    without 1.2 GB
    .peers/bin/python -m tools.bench_published --ray    Ray's put and get, where Ray is installed

A copy that no cache helps goes from one of many buffers to one of many others.  A new version has
reached the readers when the last of 16 actors has it, and has looked at one number of each page.
Each row is the median, and the best in brackets.
"""

import argparse
import mmap
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

MB = 10**6
READERS = 16
BYTES = 8 * MB
COLD_BYTES = 800 * MB  # of buffers, which no cache holds


class Times(list[float]):
    """Seconds of rounds."""

    @property
    def median(self) -> float:
        return statistics.median(self)


def timed(run: Callable[[int], object], rounds: int) -> Times:
    """Return the times of `run(round)`."""
    run(0)
    times = Times()
    for number in range(1, rounds + 1):
        begun = time.perf_counter()
        run(number)
        times.append(time.perf_counter() - begun)
    return times


def row(name: str, times: Times, beside: Times | None = None) -> None:
    """Print the median and the best, both also as multiples of a copy."""
    ratio = ""
    if beside is not None:
        ratio = f"{times.median / beside.median:6.2f} x ({min(times) / min(beside):.2f}) one copy"
    best = f"({min(times) * 1e3:.3f})"
    print(f"{name:46} {times.median * 1e3:10.3f} ms {best:>11} {ratio}", flush=True)


def buffers(nbytes: int) -> list[Any]:
    """Return buffers of this size, written."""
    count = max(2, COLD_BYTES // nbytes)
    return [np.full(nbytes // 8, float(number)) for number in range(count)]


def copies(nbytes: int, rounds: int, shared: bool = False) -> Times:
    """Return the times of one copy that no cache helps; with `shared`, into shared memory.

    That has small pages, where NumPy's own memory has huge ones.
    """
    sources, targets = buffers(nbytes), buffers(nbytes)
    if shared:
        targets = [np.frombuffer(mmap.mmap(-1, nbytes), np.float64) for _ in targets]
        for target in targets:
            target[:] = 0
    count = len(sources)

    def copy(number: int) -> None:
        np.copyto(targets[number % count], sources[number % count])

    return timed(copy, rounds)


def sets(nbytes: int, rounds: int) -> None:
    import remotely  # noqa: PLC0415 - the environment of Ray may lack it

    one = copies(nbytes, rounds)
    row(f"one copy of {nbytes // MB} MB", one)
    row("the same into shared memory", copies(nbytes, rounds, shared=True), one)
    sources = buffers(nbytes)
    params = remotely.Published(sources[0])
    params.set(sources[1])  # both slots have memory now
    seconds = timed(lambda number: params.set(sources[number % len(sources)]), rounds)
    row(f"set of {nbytes // MB} MB", seconds, one)
    row(f"latest() of {nbytes // MB} MB, again", timed(lambda _: params.latest(), 1000))

    def first_look(number: int) -> float:
        params.set(sources[number % len(sources)])
        begun = time.perf_counter()
        params.latest()
        return time.perf_counter() - begun

    looks = Times(first_look(number) for number in range(min(rounds, 20)))
    row(f"latest() of {nbytes // MB} MB, new, caches cold", looks)


def touch(array: Any) -> float:
    """Look at one number of each page; return the time of the clock that all processes share."""
    array[::512].sum()
    return time.monotonic()


def to_readers(rounds: int) -> None:
    import remotely  # noqa: PLC0415 - as above

    @remotely.remote_class(cpus=0)
    class Reader:
        def __init__(self, params: Any = None) -> None:
            self.params = params

        def wait(self, version: int) -> float:
            self.params.wait(newer_than=version)
            return touch(self.params.latest().value)

        def set_param(self, value: Any) -> float:
            return touch(value)

        def empty(self) -> None:
            pass

    one = copies(BYTES, rounds)
    row(f"one copy of {BYTES // MB} MB", one)
    sources = buffers(BYTES)
    params = remotely.Published(sources[0])
    readers = remotely.group(Reader, READERS, params)
    readers.empty()
    writes, arrivals = Times(), Times()
    for number in range(rounds):
        calls = readers.wait.submit(params.version)
        time.sleep(0.2)  # all of them wait by then
        begun = time.monotonic()
        params.set(sources[number % len(sources)])
        writes.append(time.monotonic() - begun)
        arrivals.append(max(call.result() for call in calls) - begun)
    row("Published: set, while 16 readers wait", writes, one)
    row("Published: the last of 16 readers has it", arrivals, one)
    empty = timed(lambda _: readers.empty(), rounds)
    row("an empty call of the group", empty)

    def by_call(number: int) -> float:
        begun = time.monotonic()
        return float(max(readers.set_param(sources[number % len(sources)])) - begun)

    by_calls = Times(by_call(number) for number in range(rounds))
    row("group.set_param: the last of 16 actors has it", by_calls, one)
    remotely.shutdown()


def torch_shared(rounds: int) -> None:
    import torch  # noqa: PLC0415 - as above

    sources = [torch.from_numpy(each) for each in buffers(BYTES)]
    shared = sources[0].clone()
    shared.share_memory_()  # type: ignore[no-untyped-call]
    row(
        "torch: copy_ into shared memory (no versions)",
        timed(lambda number: shared.copy_(sources[number % len(sources)]), rounds),
    )


def of_ray(rounds: int) -> None:
    import ray  # noqa: PLC0415 - it is in an environment of its own

    ray.init(num_cpus=READERS, log_to_driver=False)

    @ray.remote(num_cpus=0)
    class Reader:
        def set_param(self, value: Any) -> float:
            value[::512].sum()
            return time.monotonic()

    readers = [Reader.remote() for _ in range(READERS)]  # type: ignore[attr-defined]
    sources = buffers(BYTES)

    def by_put(number: int) -> float:
        begun = time.monotonic()
        ref = ray.put(sources[number % len(sources)])
        return float(max(ray.get([each.set_param.remote(ref) for each in readers])) - begun)

    by_put(0)
    row("Ray: put, and the last of 16 actors has it", Times(map(by_put, range(rounds))))
    ref = ray.put(sources[0])
    row("Ray: put of 8 MB", timed(lambda n: ray.put(sources[n % len(sources)]), rounds))
    row("Ray: get of 8 MB", timed(lambda _: ray.get(ref), rounds))
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench_published",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="without 1.2 GB")
    parser.add_argument("--ray", action="store_true", help="only the rows of Ray")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if options.ray:
        of_ray(options.rounds)
        return
    for size in (10, 100) if options.quick else (10, 100, 1_200):
        sets(size * MB, 5 if size > 100 else options.rounds)
    to_readers(options.rounds)
    torch_shared(options.rounds)


if __name__ == "__main__":
    main()
