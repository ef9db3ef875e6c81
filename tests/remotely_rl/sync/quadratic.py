"""Rules on f(w) = w^2 / 2, whose gradient is w, so that results can be computed by hand."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from remotely_rl import sync
from remotely_rl.sync.simulation.dispatcher import FixedOrder
from remotely_rl.sync.simulation.simulator import Simulation

RATE = 0.1


class Played(NamedTuple):
    rule: sync.Rule
    w: list[float]  # after each push
    replies: list[sync.Reply]

    @property
    def staleness(self) -> list[int]:
        return [reply.staleness for reply in self.replies]

    @property
    def accepted(self) -> list[str]:
        return [reply.accepted.value for reply in self.replies]

    @property
    def pulls(self) -> list[bool]:
        return [reply.parameters is not None for reply in self.replies]


def start(size: int = 1) -> Tensor:
    """Return the initial parameters, w = 1, in float64."""
    return torch.ones(size, dtype=torch.float64)


def play(
    spec: str,
    clients: int,
    order: Sequence[int],
    rate: float = RATE,
    gradient: Callable[[int, Tensor], Tensor] = lambda client, w: w.clone(),
) -> Played:
    """Let clients push in this order."""
    rule = sync.make(spec, start(), clients, sync.sgd(rate))
    simulation = Simulation(rule, gradient, FixedOrder(order))
    w, replies = [], []
    for _ in order:
        replies.append(simulation.push())
        w.append(float(rule.parameters))
    return Played(rule, w, replies)


def round_robin(clients: int, pushes: int) -> list[int]:
    """Return the order of clients of the same speed."""
    return [push % clients for push in range(pushes)]


def descent(pushes: int, rate: float = RATE) -> list[float]:
    """Return w after each step of plain gradient descent."""
    parameter = torch.nn.Parameter(start())
    optimizer = torch.optim.SGD([parameter], lr=rate)
    w = []
    for _ in range(pushes):
        parameter.grad = parameter.detach().clone()
        optimizer.step()
        w.append(float(parameter.detach()))
    return w


def number(one: Tensor | None) -> float:
    """Return the only number of a vector."""
    assert one is not None
    return float(one)
