"""Stale-synchronous parallel: no client is more than s pushes ahead of the slowest.

Ho et al. 2013, More effective distributed ML via a stale synchronous parallel parameter
server.  A client's clock is the number of its pushes.  Each push is a step, taken at once.  A
client whose clock is then more than s ahead of the slowest live client's waits until that one has
caught up.  s = 0 works in rounds; an infinite s is asynchronous.

Only the bound is the paper's.  Its clients read from a cache that may be s clocks old; here each
push that does not wait is answered with the newest parameters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from remotely_rl.settings import NOT_NEGATIVE
from remotely_rl.sync.reply import Accepted, Release, Reply
from remotely_rl.sync.rule import Rule


@dataclass(eq=False)
class StaleSynchronous(Rule):
    """See the module's docstring."""

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
        # The slowest clock of the others: none has to wait because this client was away.
        self.clocks[client] = min(self.clocks[other] for other in self.live - {client} or {client})

    def _slowest(self) -> int:
        return min(self.clocks[client] for client in self.live)

    def _ahead(self, client: int) -> bool:
        return self.clocks[client] > self._slowest() + self.slack

    def _caught_up(self) -> tuple[Release, ...]:
        bound = self._slowest() + self.slack
        return self.release(one for one in self.waiting if self.clocks[one] <= bound)
