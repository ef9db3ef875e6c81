"""Calls while there are 200 actors on one machine."""

from typing import Any

import remotely
from tools.bench import stopwatch
from tools.bench.ours.calls import Actor, blocking
from tools.bench.stopwatch import Effort, report, seconds


def many(effort: Effort) -> None:
    remotely.connect(cpus=256)
    actors: list[Any] = []

    def make(count: int) -> None:
        actors.append(group := remotely.group(Actor, count))
        group.ping()

    make(10)
    run = blocking(actors[0][0])
    report(call_of_10_s=stopwatch.per_call(run, effort.calls, effort.repeats))
    remotely.close(actors.pop()[1:])
    report(spawn_200_s=seconds(lambda: make(199)))
    report(call_of_200_s=stopwatch.per_call(run, effort.calls, effort.repeats))
    ping_all = lambda count: [actors[0].ping() for _ in range(count)]
    report(empty_199_s=stopwatch.per_call(ping_all, effort.broadcasts, effort.repeats))


if __name__ == "__main__":
    stopwatch.main({"many": many})
