"""Elastic averaging (EASGD): clients explore, coupled to a center by an elastic force.

Zhang, Choromanska, LeCun 2015, https://arxiv.org/abs/1412.6651, algorithm 1.  A client takes
`period` local steps, then pushes its parameters x_i; client and center move towards each other:

    x_i <- x_i - rho (x_i - center)
    center <- center + rho (x_i - center)        with x_i and center as they were before

The parameters of this rule are the center.  The optimizer takes the clients' steps, and the
answer to a push is x_i: each client keeps parameters of its own.  A schedule of the learning rate
changes that of the clients; rho is constant.  The paper's rule of thumb is rho = 0.9 / N.  Its
EAMSGD is this with momentum in the optimizer.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from remotely_rl.settings import COUNT, FRACTION
from remotely_rl.sync.client import Client, LocalStepsClient, MakeOptimizer
from remotely_rl.sync.reply import Accepted, Reply
from remotely_rl.sync.rule import Rule, sgd


@dataclass(eq=False)
class ElasticAveraging(Rule):
    """See the module's docstring."""

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
