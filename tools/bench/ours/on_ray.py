"""Calls and arrays on Ray by our engine, alternating with a bare async actor of Ray."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

import remotely
from tools.bench import processes, stopwatch
from tools.bench.stopwatch import Effort, report

TURNS = 5  # the median counts


@remotely.remote_class(cpus=0)
class Actor:
    def ping(self) -> None:
        return None

    def echo(self, value: stopwatch.Array) -> stopwatch.Array:
        return value


@ray.remote(num_cpus=0, max_concurrency=1000)
class BareActor:
    async def ping(self) -> None:
        return None

    async def echo(self, value: Any) -> Any:
        return value


def engine(effort: Effort) -> None:
    remotely.connect("ray:local", cpus=2, show_output=False)
    processes.wait_until_quiet()
    actor, bare = Actor(), BareActor.remote()
    array = stopwatch.random_bytes(10_000_000)
    assert np.array_equal(actor.echo(array), array)
    call_s, bare_call_s = in_turn(actor.ping, lambda: ray.get(bare.ping.remote()), effort.calls)
    echo_s, bare_echo_s = in_turn(
        lambda: actor.echo(array), lambda: ray.get(bare.echo.remote(array)), effort.calls // 20
    )
    report(call_s=call_s, bare_call_s=bare_call_s, echo_10mb_s=echo_s, bare_echo_10mb_s=bare_echo_s)


def in_turn(
    one: Callable[[], object], other: Callable[[], object], count: int
) -> tuple[float, float]:
    """Return the seconds per call of each, in alternating turns of `count` calls."""
    timings: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for call, found in zip((one, other), timings, strict=True):
            found.append(stopwatch.per_call(functools.partial(_repeat, call), count, 1))
    return float(np.median(timings[0])), float(np.median(timings[1]))


def _repeat(call: Callable[[], object], count: int) -> None:
    """Call without keeping results, which would fill Ray's store or our memory."""
    for _ in range(count):
        call()


if __name__ == "__main__":
    stopwatch.main({"engine": engine})
