"""Synchronous: every live client contributes to every step, and waits for it.

    theta <- theta - rate (1 / N) sum_l g_l

The sum is taken in the order of the clients' numbers, whatever the order in which they came:
permuted arrivals give the same bits.  Staleness is always 0.  A client that is gone is not
waited for; what it had pushed stays in the sum.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from remotely_rl.sync.rule import Accepted, Release, Reply, Rule


def mean(parts: Sequence[Tensor]) -> Tensor:
    """The mean, added up in the order given: torch's own sum would be free to choose another."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total.div_(len(parts))


@dataclass(eq=False)
class Synchronous(Rule):
    """See the module's docstring."""

    def begin(self) -> None:
        self.pool: dict[int, Tensor] = {}

    def arrive(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        self.pool[client] = self.weighed(contribution, staleness)
        released = self._merge() if self.complete() else None
        if released is None:
            return Reply(Accepted.COUNTED, self.version, staleness, waits=True)
        others = tuple(one for one in released if one.client != client)
        return Reply(Accepted.COUNTED, self.version, staleness, self.parameters, released=others)

    def left(self, client: int) -> Iterable[Release]:
        return self._merge() if self.pool and self.complete() else ()

    def weighed(self, contribution: Tensor, staleness: int) -> Tensor:
        """What a contribution is in the sum; staleness is 0 where all wait for all."""
        return contribution

    def complete(self) -> bool:
        """Whether those who have pushed are enough for a step."""
        return self.live <= self.pool.keys()

    def _merge(self) -> tuple[Release, ...]:
        self.step(mean([self.pool[client] for client in sorted(self.pool)]))
        waited = self.live & self.pool.keys()
        self.pool.clear()
        return self.release(waited)
