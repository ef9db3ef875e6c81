"""Gates: withholding some of the clients' pushes and fetches, to save bandwidth.

Odena 2016, https://arxiv.org/abs/1601.04033, section 2.3, equation 9: transmit with probability
(v + e) / (v + e + c), where v is the mean deviation of the gradients at the server: where gradients
agree, little is lost.  c = 0 always transmits.  Alternatively, as in Dean et al. 2012, transmit
every k-th time.

Gates work with any rule.  FASGD computes v; for other rules v is 1, and the probability constant.

    fetch withheld   the client keeps its old parameters and their version (the authors' code
                     gives them the new version, and so undercounts staleness)
    push withheld    `reapply`: the server applies the client's last contribution again (the
                     paper's choice, which it reports to diverge); `accumulate`: the client adds
                     up what it withholds and sends the mean; `forget`: nothing happens

A client's first push is never withheld.  Each client has one random stream for pushes and one for
fetches, and always draws from them, so that results do not depend on the order of clients.
"""

import random
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from remotely_rl import settings
from remotely_rl.errors import SyncError
from remotely_rl.settings import COUNT, NOT_NEGATIVE

EPSILON = 1e-4
WITHHELD = ("reapply", "accumulate", "forget")


def probability(deviation: float, weight: float) -> float:
    """Return the probability of transmission, equation 9, for mean deviation v and weight c."""
    return (deviation + EPSILON) / (deviation + EPSILON + weight)


class ClientGate:
    """The gate for a client's pushes, which runs on the client."""

    def __init__(self, weight: float, every: int, withheld: str, seed: str):
        self.deviation = 1.0  # the latest from the server
        self._weight = weight
        self._every = every
        self._withheld = withheld
        self._random = random.Random(seed)
        self._calls = 0
        self._sum: Tensor | None = None
        self._summed = 0

    def __call__(self, contribution: Tensor) -> Tensor | None:
        """Return what to send instead of a contribution, or None."""
        drawn = self._random.random() < probability(self.deviation, self._weight)
        send = (drawn and self._calls % self._every == 0) or self._calls == 0
        self._calls += 1
        if self._withheld != "accumulate":
            return contribution if send else None
        total = contribution if self._sum is None else self._sum + contribution
        count = self._summed + 1
        self._sum, self._summed = (None, 0) if send else (total, count)
        return total / count if send else None


@dataclass(eq=False)
class Gates:
    """The gates of a server and its clients."""

    push: Annotated[float, "weight c of the gate for pushes; 0: always send", NOT_NEGATIVE] = 0.0
    fetch: Annotated[float, "weight c of the gate for fetches; 0: always send", NOT_NEGATIVE] = 0.0
    push_every: Annotated[int, "send every k-th push only", COUNT] = 1
    fetch_every: Annotated[int, "send every k-th fetch only", COUNT] = 1
    withheld: Annotated[str, "a withheld push: reapply, accumulate or forget"] = "reapply"
    seed: Annotated[int, "seed of the gates' random streams", NOT_NEGATIVE] = 0

    def __post_init__(self) -> None:
        settings.check(self)
        if self.withheld not in WITHHELD:
            raise SyncError(f"withheld must be {', '.join(WITHHELD)}, not {self.withheld!r}")
        self._streams: dict[int, random.Random] = {}
        self._fetches: dict[int, int] = {}
        self._last: dict[int, tuple[Tensor, int]] = {}

    def client_gate(self, number: int) -> ClientGate:
        """Return the gate for a client to run."""
        seed = f"push {self.seed} {number}"
        return ClientGate(self.push, self.push_every, self.withheld, seed)

    def on_push(
        self, client: int, contribution: Tensor | None, version: int
    ) -> tuple[Tensor | None, int]:
        """Return the contribution, and its version, that the rule processes for a push."""
        if self.withheld != "reapply":
            return contribution, version
        if contribution is not None:
            self._last[client] = contribution, version
            return contribution, version
        return self._last.get(client, (None, version))

    def allows_fetch(self, client: int, deviation: float) -> bool:
        """Decide whether to send a client the parameters in the rule's reply."""
        stream = self._streams.get(client)
        if stream is None:
            stream = self._streams[client] = random.Random(f"fetch {self.seed} {client}")
        fetches = self._fetches.get(client, 0)
        self._fetches[client] = fetches + 1
        drawn = stream.random() < probability(deviation, self.fetch)
        return drawn and fetches % self.fetch_every == 0

    def forget(self, client: int) -> None:
        """Forget a client's last contribution: the client has restarted."""
        self._last.pop(client, None)
