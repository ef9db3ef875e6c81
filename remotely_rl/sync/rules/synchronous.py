"""Synchronous rules: clients wait for each other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from remotely_rl.errors import SyncError
from remotely_rl.settings import COUNT, NOT_NEGATIVE
from remotely_rl.sync.rule import Accepted, Release, Reply, Rule
from remotely_rl.sync.rules.asynchronous import READINGS, check_reading, divisor


def mean(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean, summed in the order given; torch's sum may choose another order.

    With equal weights it is exactly the plain mean.
    """
    relative = [weight / max(weights) for weight in weights]
    total = parts[0] * relative[0]
    for part, weight in zip(parts[1:], relative[1:], strict=True):
        total.add_(part, alpha=weight)
    return total.div_(sum(relative))


@dataclass(eq=False)
class Synchronous(Rule):
    """Synchronous: every live client contributes to every step and waits for it.

        theta <- theta - rate (1 / N) sum_l g_l

    The sum is in the order of the clients' numbers, so it does not depend on the order of arrival.
    Staleness is always 0.  A step does not wait for a client that is gone; its contribution stays
    in the sum.
    """

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


@dataclass(eq=False)
class BackupWorkers(Synchronous):
    """Backup workers: the first N of N + b gradients of a version make the step.

    Chen et al. 2016, Revisiting distributed synchronous SGD, https://arxiv.org/abs/1604.00981.
    Synchronous, except that the gradients of the b slowest clients of each round are dropped; these
    clients continue with the newest parameters.  The paper evaluates a moving average of the
    parameters, which is not implemented here.
    """

    backups: Annotated[int, "clients that a step does not wait for", NOT_NEGATIVE] = 1

    def setup(self) -> None:
        super().setup()
        if self.backups >= self.clients:
            raise SyncError(
                f"backups must be fewer than the clients, {self.clients}, not {self.backups}:"
                " no gradient would count"
            )

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        if staleness:
            return Reply(Accepted.DROPPED, self.version, staleness, self.parameters)
        return super().on_push(client, contribution, staleness)

    def complete(self) -> bool:
        return len(self.pool) >= self.clients - self.backups or self.live <= self.pool.keys()


@dataclass(eq=False)
class SoftSync(Synchronous):
    """n-softsync: c = N / n contributions, from any clients, make a step.

        theta <- theta - rate (1 / c) sum_l g_l / s(tau_l)

    Zhang, Gupta, Lian, Liu 2015, https://arxiv.org/abs/1511.05950.  n = 1 is synchronous, n = N
    asynchronous.  A client that contributed waits for the step, as in the simulator of the FASGD
    paper.  Staleness divides as in SASGD, or not at all (`at_zero=none`).
    """

    n: Annotated[int, "steps while each client pushes once", COUNT] = 1
    at_zero: Annotated[str, "what staleness is divided by: max1, plus1 or none"] = "max1"

    def setup(self) -> None:
        super().setup()
        check_reading(self.at_zero, (*READINGS, "none"))
        if self.n > self.clients:
            raise SyncError(
                f"n must be at most the number of clients, {self.clients}, not {self.n}"
            )

    def scale(self, staleness: int) -> float:
        return 1.0 if self.at_zero == "none" else 1 / divisor(staleness, self.at_zero)

    def complete(self) -> bool:
        # If fewer clients are alive than a step needs, all of them suffice.
        return len(self.pool) >= self.clients // self.n or self.live <= self.pool.keys()


@dataclass(eq=False)
class StaleSynchronous(Rule):
    """Stale-synchronous parallel: no client is more than s pushes ahead of the slowest.

    Ho et al. 2013, More effective distributed ML via a stale synchronous parallel parameter server.
    A client's clock is the number of its pushes.  Each push is an immediate step.  A client whose
    clock is then more than s ahead of the slowest live client's waits until that client has caught
    up.  s = 0 works in rounds; an infinite s is asynchronous.

    Only the bound is the paper's.  Its clients read from a cache that may be s clocks old; here
    the reply to a push that does not wait has the newest parameters.
    """

    slack: Annotated[int, "pushes that a client may be ahead of the slowest", NOT_NEGATIVE] = 3

    def setup(self) -> None:
        self.clocks = [0] * self.clients

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        was_slowest = self.clocks[client] == self._slowest()
        self.step(contribution)
        self.clocks[client] += 1
        released = self._caught_up() if was_slowest else ()
        if self._ahead(client):
            return Reply(Accepted.COUNTED, self.version, staleness, waits=True, released=released)
        return Reply(Accepted.COUNTED, self.version, staleness, self.parameters, released=released)

    def on_leave(self, client: int) -> Iterable[Release]:
        return self._caught_up()

    def on_join(self, client: int) -> None:
        # The slowest clock of the others, so that none waits because this client was away.
        self.clocks[client] = min(self.clocks[other] for other in self.live - {client} or {client})

    def _slowest(self) -> int:
        return min(self.clocks[client] for client in self.live)

    def _ahead(self, client: int) -> bool:
        return self.clocks[client] > self._slowest() + self.slack

    def _caught_up(self) -> tuple[Release, ...]:
        bound = self._slowest() + self.slack
        return self.release(one for one in self.waiting if self.clocks[one] <= bound)
