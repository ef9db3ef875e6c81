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


def mean(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean, added up in the order given: torch's own sum would be free to choose
    another.  Equal weights make the plain mean, bit by bit."""
    relative = [weight / max(weights) for weight in weights]
    total = parts[0] * relative[0]
    for part, weight in zip(parts[1:], relative[1:], strict=True):
        total.add_(part, alpha=weight)
    return total.div_(sum(relative))


@dataclass(eq=False)
class Synchronous(Rule):
    """See the module's docstring."""

    def begin(self) -> None:
        self.pool: dict[int, tuple[Tensor, float]] = {}

    def arrive(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        self.pool[client] = contribution, self.scale(staleness)
        released = self._merge() if self.complete() else None
        if released is None:
            return Reply(Accepted.COUNTED, self.version, staleness, waits=True)
        others = tuple(one for one in released if one.client != client)
        return Reply(Accepted.COUNTED, self.version, staleness, self.parameters, released=others)

    def left(self, client: int) -> Iterable[Release]:
        return self._merge() if self.pool and self.complete() else ()

    def complete(self) -> bool:
        """Whether those who have pushed are enough for a step."""
        return self.live <= self.pool.keys()

    def _merge(self) -> tuple[Release, ...]:
        parts, scales = zip(*(self.pool[client] for client in sorted(self.pool)), strict=True)
        self.step(mean(parts, scales), sum(scales) / len(scales))
        waited = self.live & self.pool.keys()
        self.pool.clear()
        return self.release(waited)
