"""The start of a cluster and of its first actors, and their end."""

import os
import statistics

import remotely
from tools.bench import processes, stopwatch
from tools.bench.ours.calls import Actor
from tools.bench.ours.started import started
from tools.bench.stopwatch import Effort, report, seconds


def start(_: Effort) -> None:
    report(connect_s=seconds(lambda: remotely.connect(cpus=32)))
    alive: list[object] = []

    def one() -> None:
        alive.append(actor := Actor())
        actor.ping()

    def sixteen() -> None:
        alive.append(actors := remotely.group(Actor, 16))
        actors.ping()

    report(first_actor_s=seconds(one))
    report(spawn_16_s=seconds(sixteen))
    report(shutdown_s=seconds(remotely.shutdown))
    cluster = started()
    report(start_s=seconds(cluster.__enter__))
    report(stop_s=seconds(lambda: cluster.__exit__(None, None, None)))


def spawn(_: Effort) -> None:
    """Start actors that use torch, which the zygote has imported."""
    import torch  # noqa: PLC0415 - `start` measures without it

    @remotely.remote_class
    class TorchActor:
        def __init__(self) -> None:
            self.layer = torch.nn.Linear(8, 8)

        def ping(self) -> int:
            float(self.layer(torch.ones(8)).sum().detach())
            return os.getpid()

    remotely.connect(cpus=32)
    first: list[TorchActor] = []

    def one() -> None:
        first.append(TorchActor())
        first[-1].ping()

    report(first_torch_s=seconds(one))
    report(next_torch_s=statistics.median(seconds(one) for _ in range(5)))
    sixteen = []
    pids: list[int] = []

    def group() -> None:
        sixteen.append(actors := remotely.group(TorchActor, 16))
        pids.extend(actors.ping())

    report(spawn_16_torch_s=seconds(group))
    report(torch_uss_bytes=statistics.median(map(processes.unique_bytes, pids)))


if __name__ == "__main__":
    stopwatch.main({"start": start, "spawn": spawn})
