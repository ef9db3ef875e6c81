"""Synchronous: every live client contributes to every step and waits for it.

    theta <- theta - rate (1 / N) sum_l g_l

The sum is in the order of the clients' numbers, so the order of arrival does not change a bit.
Staleness is always 0.  A step does not wait for a client that is gone; what it pushed stays in the
sum.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from remotely_rl.sync.reply import Accepted, Release, Reply
from remotely_rl.sync.rule import Rule


def mean(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean, summed in the order given; torch's sum may choose another order.

    With equal weights it is the plain mean, bit by bit.
    """
    relative = [weight / max(weights) for weight in weights]
    total = parts[0] * relative[0]
    for part, weight in zip(parts[1:], relative[1:], strict=True):
        total.add_(part, alpha=weight)
    return total.div_(sum(relative))


@dataclass(eq=False)
class Synchronous(Rule):
    """See the module's docstring."""

    def setup(self) -> None:
        self.pool: dict[int, tuple[Tensor, float]] = {}

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        self.pool[client] = contribution, self.scale(staleness)
        released = self._merge() if self.complete() else None
        if released is None:
            return Reply(Accepted.COUNTED, self.version, staleness, waits=True)
        others = tuple(one for one in released if one.client != client)
        return Reply(Accepted.COUNTED, self.version, staleness, self.parameters, released=others)

    def on_leave(self, client: int) -> Iterable[Release]:
        return self._merge() if self.pool and self.complete() else ()

    def complete(self) -> bool:
        """Whether there are enough contributions for a step."""
        return self.live <= self.pool.keys()

    def _merge(self) -> tuple[Release, ...]:
        parts, scales = zip(*(self.pool[client] for client in sorted(self.pool)), strict=True)
        self.step(mean(parts, scales), sum(scales) / len(scales))
        waited = self.live & self.pool.keys()
        self.pool.clear()
        return self.release(waited)
