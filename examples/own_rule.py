"""Your own sync rule, first in the simulator and then on a cluster.

    python examples/own_rule.py

This rule steps along the sign of each gradient (signSGD).  A rule is a dataclass of its settings
with one method, which maps a contribution to the direction of the step.  The same class runs in a
simulation of 32 clients in this process, and then with four real workers.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

import remotely
from remotely_rl.learning.parameter_server import ParameterServer, Worker
from remotely_rl.settings import NOT_NEGATIVE
from remotely_rl.sync import Rule, sgd
from remotely_rl.sync.flat import Flat
from remotely_rl.sync.rules.asynchronous import Asynchronous
from remotely_rl.sync.simulation.dispatcher import RandomOrder
from remotely_rl.sync.simulation.simulator import Simulation


@dataclass(eq=False)
class SignDescent(Asynchronous):
    """Steps of the same size in each coordinate; coordinates near zero do not move."""

    threshold: Annotated[float, "smaller values count as zero", NOT_NEGATIVE] = 1e-4

    def direction(self, client: int, contribution: Tensor) -> Tensor:
        return contribution.sign() * (contribution.abs() > self.threshold)


class Sines:
    """A small network that fits a sine to points that it draws itself."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(0)  # all workers start with the same network
        self.flat = Flat(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
        self.random = torch.Generator().manual_seed(seed)

    def loss(self) -> Tensor:
        x = 6 * torch.rand(64, 1, generator=self.random) - 3
        loss: Tensor = (self.flat.module(x) - x.sin()).square().mean()
        return loss

    def gradient(self, parameters: Tensor, broadcast: Any = None) -> Tensor:
        return self.flat.gradient_at(parameters, self.loss)

    def report(self) -> None:
        return None


def show(name: str, rule: Rule) -> None:
    test = Sines(seed=-1)
    test.flat.load(rule.parameters)
    staleness = rule.counters.staleness_mean
    print(f"{name}: loss {test.loss().item():.4f}, mean staleness {staleness:.1f}", flush=True)


def main(pushes: int = 4000) -> None:
    start = Sines(0).flat.vector

    rule = SignDescent(start, clients=32, optimizer=sgd(2e-4))
    work = Sines(1)
    Simulation(rule, lambda client, w: work.gradient(w), RandomOrder(seed=1)).run(pushes)
    show("simulated, 32 clients", rule)

    remotely.connect(cpus=4)
    rule = SignDescent(start, clients=4, optimizer=sgd(2e-4))
    server = ParameterServer(rule, lambda number: Worker(Sines, number))
    while rule.version < pushes:
        server.take(timeout_s=1.0)
    server.close()
    show("live, 4 workers", rule)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
