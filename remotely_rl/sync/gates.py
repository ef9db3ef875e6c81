"""Gates: sending less, by withholding some of a client's pushes and fetches.

Odena 2016, https://arxiv.org/abs/1601.04033, section 2.3, equation 9: transmit with probability
(v + e) / (v + e + c), where v is the mean deviation of the gradients that the server knows of.
Where gradients agree, little is lost.  c = 0 always transmits.  Alternatively, as in Dean et al.
2012, transmit every k-th time.

Gates work with any rule.  FASGD reports v; for other rules it is 1, and the probability constant.

    fetch withheld   the client goes on with its old parameters, and their old version (which
                     the authors' code replaces by the new one, and so undercounts staleness)
    push withheld    the server applies again what the client sent last (`reapply`, the paper's
                     way, of which it says that training diverges); or the client sums up what
                     it withholds and sends the mean (`accumulate`); or nothing happens
                     (`forget`)

A client's first push is never withheld.  Each client has one random stream for its pushes and one
for its fetches, so that the order of clients does not matter, and draws from it even where the
answer is known.
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
    """Return the probability to transmit, equation 9, for mean deviation v and weight c."""
    return (deviation + EPSILON) / (deviation + EPSILON + weight)


def weight_for(share: float, deviation: float) -> float:
    """Return the weight c that transmits a share, where the mean deviation is constant."""
    return (deviation + EPSILON) * (1 - share) / share


class ClientGate:
    """The gate for a client's pushes, which runs at the client."""

    def __init__(self, weight: float, every: int, withheld: str, seed: str):
        self.deviation = 1.0  # the newest that the server sent
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

    push: Annotated[float, "weight c of the gate for pushes; 0 is open", NOT_NEGATIVE] = 0.0
    fetch: Annotated[float, "weight c of the gate for fetches; 0 is open", NOT_NEGATIVE] = 0.0
    push_every: Annotated[int, "one in so many pushes is sent", COUNT] = 1
    fetch_every: Annotated[int, "one in so many fetches is sent", COUNT] = 1
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
        """Return the gate that runs at a client."""
        seed = f"push {self.seed} {number}"
        return ClientGate(self.push, self.push_every, self.withheld, seed)

    def on_push(
        self, client: int, contribution: Tensor | None, version: int
    ) -> tuple[Tensor | None, int]:
        """Return what the rule processes instead of what a client pushed, and its version."""
        if self.withheld != "reapply":
            return contribution, version
        if contribution is not None:
            self._last[client] = contribution, version
            return contribution, version
        return self._last.get(client, (None, version))

    def allows_fetch(self, client: int, deviation: float) -> bool:
        """Decide whether to send a client the parameters that the rule gave it."""
        stream = self._streams.get(client)
        if stream is None:
            stream = self._streams[client] = random.Random(f"fetch {self.seed} {client}")
        fetches = self._fetches.get(client, 0)
        self._fetches[client] = fetches + 1
        drawn = stream.random() < probability(deviation, self.fetch)
        return drawn and fetches % self.fetch_every == 0

    def forget(self, client: int) -> None:
        """Do not apply again what a client sent last: it starts afresh."""
        self._last.pop(client, None)
