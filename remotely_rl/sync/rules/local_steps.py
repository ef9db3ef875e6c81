"""Rules with local steps: clients take many steps with their own optimizers between two pushes."""

import functools
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE
from remotely_rl.sync.client import Client, LocalStepsClient, MakeOptimizer
from remotely_rl.sync.rule import Accepted, Reply, Rule, sgd
from remotely_rl.sync.rules.synchronous import Synchronous


@dataclass(eq=False)
class LocalSteps(Synchronous):
    """Local SGD and DiLoCo: rounds of many steps at each client, then one step along their mean.

    A client takes `steps` steps with its own optimizer, whose state stays with the client, and
    pushes the difference, start minus end, in place of a gradient.  An outer optimizer, SGD with
    Nesterov momentum, steps along the mean of all clients.

        local SGD    outer rate 1, no momentum: the clients' parameters are averaged
                     (Stich 2019, https://arxiv.org/abs/1805.09767)
        DiLoCo       outer rate 0.7, momentum 0.9, hundreds of steps, AdamW as the inner optimizer
                     (Douillard et al. 2023, https://arxiv.org/abs/2311.08105)

    The defaults are those of local SGD.  The inner optimizer is the one you choose, so AdamW only
    if you choose it.  `diloco` takes 100 steps by default, the paper 500.  A learning rate schedule
    applies to the inner optimizers; the outer rate is constant.
    """

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


@dataclass(eq=False)
class ElasticAveraging(Rule):
    """Elastic averaging (EASGD): clients explore, coupled to a center by an elastic force.

    Zhang, Choromanska, LeCun 2015, https://arxiv.org/abs/1412.6651, algorithm 1.  A client takes
    `period` local steps, then pushes its parameters x_i; client and center move towards each other:

        x_i <- x_i - rho (x_i - center)
        center <- center + rho (x_i - center)        with the old x_i and center

    The parameters of this rule are the center.  The optimizer takes the clients' steps, and the
    reply to a push is x_i: each client has its own parameters.  A learning rate schedule applies to
    the clients; rho is constant.  The paper's rule of thumb is rho = 0.9 / N.  Its EAMSGD is this
    rule with momentum in the optimizer.
    """

    period: Annotated[int, "local steps of a client between two pushes", COUNT] = 8
    moving_rate: Annotated[float, "rho; 0: 0.9 / clients", FRACTION] = 0.0
    clients_optimize = True

    def __post_init__(self, start: Tensor, optimizer: MakeOptimizer) -> None:
        self.inner = optimizer
        self.rho = self.moving_rate or 0.9 / self.clients
        super().__post_init__(start, sgd(self.rho))

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        offset = contribution - self.vector.detach()
        self.step(-offset)
        return Reply(Accepted.COUNTED, self.version, staleness, contribution - self.rho * offset)

    def client(self, number: int, accumulate: int = 1) -> Client:
        plain = super().client(number, accumulate)
        return LocalStepsClient(plain, self.period, self.inner, push_parameters=True)
