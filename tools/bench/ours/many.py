"""Two hundred actors on one machine, and whether a call notices them."""

from typing import Any

import remotely
from tools.bench import stopwatch
from tools.bench.stopwatch import Effort, report, seconds


@remotely.remote_class
class Actor:
    def ping(self) -> None:
        return None


def many(effort: Effort) -> None:
    remotely.connect(cpus=256)
    actors: list[Any] = []

    def make(count: int) -> None:
        actors.append(group := remotely.group(Actor, count))
        group.ping()

    def run(count: int) -> None:
        for _ in range(count):
            one.ping()

    make(10)
    one = actors[0][0]
    report(call_of_10_s=stopwatch.per_call(run, effort.calls, effort.repeats))
    remotely.close(actors.pop()[1:])
    report(spawn_200_s=seconds(lambda: make(199)))
    report(call_of_200_s=stopwatch.per_call(run, effort.calls, effort.repeats))
    ping_all = lambda count: [actors[0].ping() for _ in range(count)]
    report(empty_199_s=stopwatch.per_call(ping_all, effort.broadcasts, effort.repeats))


if __name__ == "__main__":
    stopwatch.main({"many": many})
