"""Asynchronous: each contribution is a step, taken at once.

    theta <- theta - rate g

Dean et al. 2012; Mnih et al. 2016, https://arxiv.org/abs/1602.01783.  No client waits; with N
clients of the same speed a contribution is N - 1 steps stale.  Pushes are processed one at a time,
as by Dean's parameter server; Mnih's threads write without locks.
"""

from dataclasses import dataclass

from torch import Tensor

from remotely_rl.sync.reply import Accepted, Reply
from remotely_rl.sync.rule import Rule


@dataclass(eq=False)
class Asynchronous(Rule):
    """See the module's docstring.  A rule that only scales steps overrides `scale`."""

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        self.step(self.direction(client, contribution), self.scale(staleness))
        return Reply(Accepted.COUNTED, self.version, staleness, self.parameters)

    def direction(self, client: int, contribution: Tensor) -> Tensor:
        """Return what to step along for a contribution."""
        return contribution
