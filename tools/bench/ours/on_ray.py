"""Calls and arrays on Ray's actors, by our engine: what our handles cost there."""

import numpy as np

import remotely
from tools.bench import processes, stopwatch
from tools.bench.stopwatch import Effort, report


@remotely.remote_class(cpus=0)
class Actor:
    def ping(self) -> None:
        return None

    def echo(self, value: stopwatch.Array) -> stopwatch.Array:
        return value


def engine(effort: Effort) -> None:
    remotely.connect("ray:local", cpus=2, show_output=False)
    processes.wait_until_quiet()
    actor = Actor()

    def blocking(count: int) -> None:
        for _ in range(count):
            actor.ping()

    def echo(count: int) -> None:
        for _ in range(count):
            actor.echo(array)

    array = stopwatch.random_bytes(10_000_000)
    assert np.array_equal(actor.echo(array), array)
    report(
        call_async_s=stopwatch.per_call(blocking, effort.calls, effort.repeats),
        echo_async_10mb_s=stopwatch.per_call(echo, effort.calls // 20, effort.repeats),
    )


if __name__ == "__main__":
    stopwatch.main({"engine": engine})
