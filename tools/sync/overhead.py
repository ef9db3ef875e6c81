"""The cost of a parameter server beyond the gradients: 1.7 million parameters, 8 workers.

A worker computes a gradient of the Nature network (84x84 frames) at a fixed batch: first alone,
without a server, then under each rule, in interleaved rounds.  The table has medians of the rate
and of the time of a push in the server's process: the rule's, and the rest in multiples of a copy
of the parameters.  Workers that compute the same and push very little of it separate the time of
calls from that of copies.
"""

import statistics
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import remotely
from remotely_rl import sync
from remotely_rl.learning.parameter_server import ParameterServer, Worker
from remotely_rl.sync.flat import Flat
from remotely_rl.sync.rule import Reply
from tools import tables
from tools.bench.figures import spread

WORKERS = 8
ROUNDS = 3
BATCH = 32
LITTLE = 1000  # numbers of a small push
SPECS = (
    "asynchronous",
    "synchronous",
    "semi_async:n=2,counted=8,weak=12",
    "stale_synchronous",
    "sasgd",
    "fasgd",
    "delay_compensated",
)
NEARLY_NOTHING = f"`{SPECS[0]}`, {LITTLE:,} numbers pushed"


class Network:
    """The Nature network for Pong with an output for the value, and a loss."""

    def __init__(self, seed: int):
        torch.manual_seed(0)
        self.flat = Flat(
            nn.Sequential(
                nn.Conv2d(4, 32, 8, 4),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, 2),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(3136, 512),
                nn.ReLU(),
                nn.Linear(512, 7),
            )
        )
        self.x = torch.randn(BATCH, 4, 84, 84, generator=torch.Generator().manual_seed(seed))

    def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
        return self.flat.gradient_at(parameters, lambda: self.flat.module(self.x).square().mean())

    def report(self) -> None:
        return None


class Little(Network):
    """The same with its own parameters, and only a small part of the gradient."""

    def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
        return super().gradient(self.flat.vector)[:LITTLE].clone()


@remotely.remote_class
class Alone:
    """A worker that computes gradients without a server."""

    def __init__(self, seed: int):
        torch.set_num_threads(1)
        self.work = Network(seed)
        self.parameters = self.work.flat.vector.clone()

    def compute(self, seconds: float) -> int:
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            self.work.gradient(self.parameters)
            count += 1
        return count


class Cost(NamedTuple):
    """The cost of one rule in one round."""

    rate: float  # gradients per second of all workers
    server_s: float  # CPU time of a push in the server's process
    rule_s: float  # the rule's part of it


def measure(seconds: float, rounds: int = ROUNDS) -> dict[str, list[Cost]]:
    """Measure each rule and no rule for `seconds` per round, interleaved."""
    remotely.connect(cpus=2 * WORKERS)
    torch.set_num_threads(1)
    alone = remotely.group(Alone, WORKERS, 1)
    costs: dict[str, list[Cost]] = {}
    for _ in range(rounds):
        counts = alone.compute(seconds)
        costs.setdefault("alone", []).append(Cost(sum(counts) / seconds, 0.0, 0.0))
        for spec in SPECS:
            costs.setdefault(f"`{spec}`", []).append(_under(spec, seconds))
        costs.setdefault(NEARLY_NOTHING, []).append(_under(SPECS[0], seconds, Little, LITTLE))
    return costs


def _under(
    spec: str, seconds: float, work: type[Network] = Network, size: int | None = None
) -> Cost:
    rule = sync.make(spec, Network(0).flat.vector[:size], WORKERS, sync.sgd(1e-4))
    push, computed = rule.push, 0.0

    def timed(client: int, contribution: Tensor | None, version: int) -> Reply:
        nonlocal computed
        began = time.thread_time()
        reply = push(client, contribution, version)
        computed += time.thread_time() - began
        return reply

    rule.push = timed  # type: ignore[method-assign]
    server = ParameterServer(rule, lambda number: Worker(work, number), lambda text: None)
    try:
        for _ in range(4 * WORKERS):  # until all compute
            server.take(5.0)
        computed, pushes, began, spent = 0.0, 0, time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            pushes += server.take(1.0) is not None
        took, spent = time.monotonic() - began, time.process_time() - spent
    finally:
        server.close()
    return Cost(pushes / took, spent / pushes, computed / pushes)


def copy_s() -> float:
    """Return the seconds of a copy of the parameters from memory."""
    size = Network(0).flat.vector.numel()
    sources = [torch.randn(size) for _ in range(16)]
    into = [torch.empty(size) for _ in range(16)]
    times = []
    for _ in range(9):
        began = time.perf_counter()
        for source, target in zip(sources, into, strict=True):
            target.copy_(source)
        times.append((time.perf_counter() - began) / len(sources))
    return statistics.median(times)


def table(costs: dict[str, list[Cost]]) -> str:
    """Return medians, and the range of the rate, in Markdown."""
    copy = copy_s()
    alone = statistics.median(cost.rate for cost in costs["alone"])
    calls = statistics.median(cost.server_s - cost.rule_s for cost in costs[NEARLY_NOTHING])
    rows = []
    for name, rounds in costs.items():
        rates = [cost.rate for cost in rounds]
        rate = statistics.median(rates)
        row = [name, f"{spread(rates):.1f}", f"{rate / alone:.0%}"]
        if name == "alone":
            rows.append([*row, "", "", ""])
            continue
        server = statistics.median(cost.server_s for cost in rounds)
        rule = statistics.median(cost.rule_s for cost in rounds)
        moved = (server - rule - calls) / copy
        rows.append([*row, f"{server * 1e3:.2f} ms", f"{rule * 1e3:.2f} ms", f"{moved:.1f}"])
    size = Network(0).flat.vector.numel()
    explained = (
        f"{size:,} parameters, {WORKERS} workers; a copy of them takes {copy * 1e3:.2f} ms. A push"
        f" costs the server the rule's arithmetic, {calls * 1e3:.2f} ms for calls (the cost of a"
        " small push), and copies."
    )
    head = ["rule", "gradients/s", "of those alone", "server, per push", "the rule", "copies"]
    return f"{explained}\n\n{tables.table(head, rows)}"
