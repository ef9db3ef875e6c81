"""Asynchronous: each contribution is a step of its own, at once.

    theta <- theta - rate g

Dean et al. 2012; Mnih et al. 2016, https://arxiv.org/abs/1602.01783.  Nobody waits; with N
clients of the same speed a contribution is N - 1 steps stale.  Pushes are taken one after another,
as from Dean's parameter server; Mnih's threads write without locks.
"""

from dataclasses import dataclass

from torch import Tensor

from remotely_rl.sync.rule import Accepted, Reply, Rule


@dataclass(eq=False)
class Asynchronous(Rule):
    """See the module's docstring.  A rule that only scales what arrives has another `scale`."""

    def arrive(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        self.step(self.direction(client, contribution), self.scale(staleness))
        return Reply(Accepted.COUNTED, self.version, staleness, self.parameters)

    def direction(self, client: int, contribution: Tensor) -> Tensor:
        """What is stepped along for a contribution."""
        return contribution
