"""Ray, with actors of `num_cpus=0`, so that any number fits on two cores."""

import os
import statistics
import time
from typing import Any

import ray

from tools.bench import processes, stopwatch
from tools.bench.stopwatch import Effort, Meter, report, seconds

AHEAD = 4  # results in flight per actor of a stream, as in ours


@ray.remote(num_cpus=0)
class Actor:
    def ping(self) -> None:
        return None

    def add_one(self, number: int) -> int:
        return number + 1

    def echo(self, value: Any) -> Any:
        return value

    def set_param(self, param: Any) -> None:
        self.param = param


@ray.remote(num_cpus=0)
class Caller:
    def __init__(self, target: Any) -> None:
        self.target = target

    def run(self, count: int) -> None:
        ray.get([self.target.add_one.remote(number) for number in range(count)])


@ray.remote(num_cpus=0)
class Sampler:
    def __init__(self) -> None:
        self.item = stopwatch.trajectory()

    def rollout(self) -> Any:
        return self.item


@ray.remote(num_cpus=0)
class TorchActor:
    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - in the actor's process

        self.torch = torch
        self.layer = torch.nn.Linear(8, 8)

    def ping(self) -> int:
        float(self.layer(self.torch.ones(8)).sum().detach())
        return os.getpid()


def calls(effort: Effort) -> None:
    _init()
    actor = Actor.remote()

    def blocking(count: int) -> None:
        for _ in range(count):
            ray.get(actor.ping.remote())

    def one_by_one(count: int) -> None:
        for _ in range(count):
            done, _pending = ray.wait([actor.ping.remote()])
            ray.get(done)

    def pipelined(count: int) -> None:
        ray.get([actor.ping.remote() for _ in range(count)])

    report(
        call_s=stopwatch.per_call(blocking, effort.calls, effort.repeats),
        as_completed_s=stopwatch.per_call(one_by_one, effort.calls, effort.repeats),
        pipelined_per_s=1 / stopwatch.per_call(pipelined, effort.pipelined, effort.repeats),
    )


def crowd(effort: Effort) -> None:
    _init()
    callers = [Caller.remote(Actor.remote()) for _ in range(8)]

    def run(count: int) -> None:
        ray.get([caller.run.remote(count) for caller in callers])

    report(crowd_per_s=8 / stopwatch.per_call(run, effort.pipelined, effort.repeats))


def arrays(effort: Effort) -> None:
    def run(array: stopwatch.Array, count: int) -> None:
        for _ in range(count):
            ray.get(actor.echo.remote(array))

    _init()
    actor = Actor.remote()
    stopwatch.echoes(run, effort)


def broadcast(effort: Effort) -> None:
    def run(count: int) -> None:
        for _ in range(count):
            ref = ray.put(param)
            ray.get([actor.set_param.remote(ref) for actor in actors])

    _init()
    actors = [Actor.remote() for _ in range(16)]
    ray.get([actor.ping.remote() for actor in actors])
    param = stopwatch.parameters()
    report(broadcast_s=stopwatch.per_call(run, effort.broadcasts, effort.repeats))


def streams(effort: Effort) -> None:
    _init()
    samplers = [Sampler.remote() for _ in range(4)]
    coming = {sampler.rollout.remote(): sampler for sampler in samplers for _ in range(AHEAD)}
    meter = Meter(effort.stream_s)
    going_on = True
    while going_on:
        (ready,), _ = ray.wait(list(coming), num_returns=1)
        sampler = coming.pop(ready)
        going_on = meter.runs_on(stopwatch.size_of(ray.get(ready)))
        coming[sampler.rollout.remote()] = sampler
    report(stream_bytes_per_s=meter.per_s)


def spawn(_: Effort) -> None:
    _init()
    ray.get(TorchActor.remote().ping.remote())
    alive: list[Any] = []
    pids: list[int] = []

    def sixteen() -> None:
        actors = [TorchActor.remote() for _ in range(16)]
        pids.extend(ray.get([actor.ping.remote() for actor in actors]))
        alive.extend(actors)

    report(spawn_16_torch_s=seconds(sixteen))
    report(torch_uss_bytes=statistics.median(map(processes.unique_bytes, pids)))


def start(_: Effort) -> None:
    report(connect_s=seconds(lambda: _init(settle=False)))
    report(first_actor_s=seconds(lambda: ray.get(Actor.remote().ping.remote())))
    actors: list[Any] = []

    def sixteen() -> None:
        actors.extend(Actor.remote() for _ in range(16))
        ray.get([actor.ping.remote() for actor in actors])

    report(spawn_16_s=seconds(sixteen), shutdown_s=seconds(ray.shutdown))


def idle(effort: Effort) -> None:
    _init()
    report(idle_0_share=_share(effort.idle_s))
    actors = [Actor.remote() for _ in range(16)]
    ray.get([actor.ping.remote() for actor in actors])
    report(idle_16_share=_share(effort.idle_s))


def _share(for_s: float) -> float:
    """Return the share of one core of all of Ray's processes."""
    processes.wait_until_quiet()
    pids = processes.descendants(os.getpid())
    before = processes.cpu_of(pids)
    time.sleep(for_s)
    after = processes.cpu_of(pids)
    return (sum(after.values()) - sum(before.values())) / for_s


def _init(settle: bool = True) -> None:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
    )
    if settle:  # processes for later actors are still starting
        processes.wait_until_quiet()


if __name__ == "__main__":
    stopwatch.main(
        {
            "calls": calls,
            "crowd": crowd,
            "arrays": arrays,
            "broadcast": broadcast,
            "streams": streams,
            "spawn": spawn,
            "start": start,
            "idle": idle,
        }
    )
