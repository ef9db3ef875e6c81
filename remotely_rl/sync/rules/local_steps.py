"""Local SGD and DiLoCo: rounds of many steps at each client, then one step along their mean.

A client takes `steps` steps by its own optimizer, whose state stays with it, and pushes the
difference, start minus end, in place of a gradient.  An outer optimizer, SGD with Nesterov
momentum, steps along the mean of all clients.

    local SGD    outer rate 1, no momentum: the clients' parameters are averaged
                 (Stich 2019, https://arxiv.org/abs/1805.09767)
    DiLoCo       outer rate 0.7, momentum 0.9, hundreds of steps, AdamW as the inner optimizer
                 (Douillard et al. 2023, https://arxiv.org/abs/2311.08105)

The inner optimizer is the one given, and AdamW only if you give it.  The default number of steps
is 100, where DiLoCo's paper has 500.  A schedule of the learning rate changes that of the inner
optimizers; the outer rate is constant.
"""

import functools
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE
from remotely_rl.sync.client import Client, LocalStepsClient, MakeOptimizer
from remotely_rl.sync.rules.synchronous import Synchronous


@dataclass(eq=False)
class LocalSteps(Synchronous):
    """See the module's docstring; with the defaults, local SGD."""

    steps: Annotated[int, "local steps of a client in a round", COUNT] = 8
    outer_rate: Annotated[
        float, "rate of the outer optimizer, which no schedule changes", NOT_NEGATIVE
    ] = 1.0
    momentum: Annotated[float, "Nesterov momentum of the outer optimizer", FRACTION] = 0.0
    clients_optimize = True

    def __post_init__(self, start: Tensor, optimizer: MakeOptimizer) -> None:
        self.inner = optimizer
        outer = functools.partial(
            torch.optim.SGD,
            lr=self.outer_rate,
            momentum=self.momentum,
            nesterov=self.momentum > 0,
        )
        super().__post_init__(start, outer)

    def client(self, number: int, accumulate: int = 1) -> Client:
        return LocalStepsClient(super().client(number, accumulate), self.steps, self.inner)


@dataclass(eq=False)
class DiLoCo(LocalSteps):
    """Local steps with the outer optimizer of DiLoCo's paper."""

    steps: Annotated[int, "local steps of a client in a round", COUNT] = 100
    outer_rate: Annotated[
        float, "rate of the outer optimizer, which no schedule changes", NOT_NEGATIVE
    ] = 0.7
    momentum: Annotated[float, "Nesterov momentum of the outer optimizer", FRACTION] = 0.9
