"""Calls without large values, on an embedded cluster: ipc, with CURVE."""

import os
from typing import Any

import remotely
from tools.bench import stopwatch
from tools.bench.ours.started import started
from tools.bench.stopwatch import Effort, report


@remotely.remote_class
class Actor:
    def ping(self) -> None:
        return None

    def add_one(self, number: int) -> int:
        return number + 1


@remotely.remote_class
class Caller:
    def __init__(self, target: Actor) -> None:
        self.target = target

    def run(self, count: int) -> None:
        for future in [self.target.add_one.submit(number) for number in range(count)]:
            future.result()


def calls(effort: Effort) -> None:
    remotely.connect(cpus=32)
    actor = Actor()
    report(
        call_s=stopwatch.per_call(blocking(actor), effort.calls, effort.repeats),
        as_completed_s=stopwatch.per_call(one_by_one(actor), effort.calls, effort.repeats),
        pipelined_per_s=1 / stopwatch.per_call(pipelined(actor), effort.pipelined, effort.repeats),
    )


def tcp(effort: Effort) -> None:
    """Call over tcp: the cluster takes this process for another machine's."""
    with started() as (address, key):
        os.environ["REMOTELY_HOST"] = "another"
        remotely.connect(address, key=key)
        actor = Actor()
        report(call_tcp_s=stopwatch.per_call(blocking(actor), effort.calls, effort.repeats))
        remotely.shutdown()


def crowd(effort: Effort) -> None:
    """Have each of eight actors call one of eight others."""
    remotely.connect(cpus=32)
    targets = remotely.group(Actor, 8)
    callers: Any = remotely.Group([Caller(target) for target in targets])
    run = lambda count: callers.run(count)
    report(crowd_per_s=8 / stopwatch.per_call(run, effort.pipelined, effort.repeats))


def blocking(actor: Any) -> Any:
    def run(count: int) -> None:
        for _ in range(count):
            actor.ping()

    return run


def one_by_one(actor: Any) -> Any:
    def run(count: int) -> None:
        for _ in range(count):
            for future in remotely.as_completed([actor.ping.submit()]):
                future.result()

    return run


def pipelined(actor: Any) -> Any:
    def run(count: int) -> None:
        for future in [actor.ping.submit() for _ in range(count)]:
            future.result()

    return run


if __name__ == "__main__":
    stopwatch.main({"calls": calls, "tcp": tcp, "crowd": crowd})
