"""Elastic averaging (EASGD): clients stray, tied to a centre by a spring.

Zhang, Choromanska, LeCun 2015, https://arxiv.org/abs/1412.6651, algorithm 1.  A client takes
`period` steps of its own, then pushes where it is; both move towards each other:

    x_i <- x_i - rho (x_i - centre)
    centre <- centre + rho (x_i - centre)        with x_i and centre as they were before

The parameters of this rule are the centre.  The client's steps are by the optimizer; what is
sent back is x_i, so that what each has is its own.  A schedule of the rate is theirs; rho stays.
The paper's rule of thumb is rho = 0.9 / N.  Its EAMSGD is this with momentum in the optimizer.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from remotely_rl.settings import COUNT, FRACTION
from remotely_rl.sync.client import Client, Exploring, MakeOptimizer
from remotely_rl.sync.rule import Accepted, Reply, Rule, sgd


@dataclass(eq=False)
class ElasticAveraging(Rule):
    """See the module's docstring."""

    period: Annotated[int, "steps of its own that a client takes between two pushes", COUNT] = 8
    moving_rate: Annotated[float, "rho; 0 is 0.9 by the number of clients", FRACTION] = 0.0
    explores = True

    def __post_init__(self, start: Tensor, optimizer: MakeOptimizer) -> None:
        self.inner = optimizer
        self.rho = self.moving_rate or 0.9 / self.clients
        super().__post_init__(start, sgd(self.rho))

    def arrive(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        strayed = contribution - self.vector.detach()
        self.step(-strayed)
        return Reply(Accepted.COUNTED, self.version, staleness, contribution - self.rho * strayed)

    def client(self, number: int, accumulate: int = 1) -> Client:
        plain = super().client(number, accumulate)
        return Exploring(plain, self.period, self.inner, whole=True)
