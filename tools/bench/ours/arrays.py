"""Calls with arrays: a round trip, a broadcast and a stream."""

from collections.abc import Iterator
from typing import Any

import remotely
from tools.bench import stopwatch
from tools.bench.stopwatch import Array, Effort, Meter, report


@remotely.remote_class
class Actor:
    def ping(self) -> None:
        return None

    def echo(self, value: Any) -> Any:
        return value

    def set_param(self, param: Any) -> None:
        self.param = param


@remotely.remote_class
class Sampler:
    """A stream of one existing item, so that only its transfer is timed."""

    def __init__(self) -> None:
        self.item = stopwatch.trajectory()

    def rollouts(self) -> Iterator[dict[str, Array]]:
        while True:
            yield self.item


def arrays(effort: Effort) -> None:
    def run(array: Array, count: int) -> None:
        for _ in range(count):
            actor.echo(array)

    remotely.connect(cpus=32)
    actor = Actor()
    stopwatch.echoes(run, effort)


def broadcast(effort: Effort) -> None:
    """Send to 16 actors in three ways, and call them without arguments."""
    remotely.connect(cpus=32)
    actors: Any = remotely.group(Actor, 16)
    param = stopwatch.parameters()

    def put_and_loop() -> None:
        ref = remotely.put(param)
        for future in [actor.set_param.submit(ref) for actor in actors]:
            future.result()

    ways = {
        "broadcast_s": lambda: actors.set_param(param),
        "broadcast_put_s": lambda: actors.set_param(remotely.put(param)),
        "broadcast_put_loop_s": put_and_loop,
        "empty_16_s": lambda: actors.ping(),
    }
    for name, way in ways.items():
        run = lambda count, way=way: [way() for _ in range(count)]
        report(**{name: stopwatch.per_call(run, effort.broadcasts, effort.repeats)})


def streams(effort: Effort) -> None:
    remotely.connect(cpus=32)
    samplers = [Sampler() for _ in range(4)]
    meter = Meter(effort.stream_s)
    for item in remotely.merge([sampler.rollouts() for sampler in samplers]):
        if not meter.runs_on(stopwatch.size_of(item)):
            break
    report(stream_bytes_per_s=meter.per_s)


if __name__ == "__main__":
    stopwatch.main({"arrays": arrays, "broadcast": broadcast, "streams": streams})
