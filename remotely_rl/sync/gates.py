"""Sending less: gates before what a client pushes, and before what it fetches.

Odena 2016, https://arxiv.org/abs/1601.04033, section 2.3, equation 9: transmit with the
probability (v + e) / (v + e + c), where v is the mean deviation of the gradients that the
server knows of.  Where gradients agree, little is missed.  c = 0 transmits always.  Or, as
Dean et al. 2012 do, every k-th time.

Gates go around any rule.  FASGD tells v; of the others it is 1, and the probability fixed.

    fetch withheld   the client goes on with its old parameters, and their old version (which
                     the authors' code calls new, and so counts too little staleness)
    push withheld    the server applies again what the client sent last (`reapply`, the
                     paper's way, of which it says that training diverges); or the client
                     sums up what it withholds and sends the mean of it (`accumulate`); or
                     nothing happens (`forget`)

A client's first push is never withheld.  Each client has a random stream for its pushes and
one for its fetches, so that who was asked before does not matter, and a draw is made even
where the answer is known.
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
    """Of transmitting, equation 9, for mean deviation v and weight c."""
    return (deviation + EPSILON) / (deviation + EPSILON + weight)


def weight_for(share: float, deviation: float) -> float:
    """The weight c that lets a share through where the mean deviation is steady."""
    return (deviation + EPSILON) * (1 - share) / share


class ClientGate:
    """The gate before a client's pushes, which is with the client."""

    def __init__(self, weight: float, every: int, withheld: str, seed: str):
        self.deviation = 1.0  # the newest that the server told of
        self._weight = weight
        self._every = every
        self._withheld = withheld
        self._random = random.Random(seed)
        self._asked = 0
        self._kept: Tensor | None = None
        self._kept_count = 0

    def __call__(self, contribution: Tensor) -> Tensor | None:
        """What is sent in place of a contribution, or None."""
        drawn = self._random.random() < probability(self.deviation, self._weight)
        send = (drawn and self._asked % self._every == 0) or self._asked == 0
        self._asked += 1
        if self._withheld != "accumulate":
            return contribution if send else None
        total = contribution if self._kept is None else self._kept + contribution
        count = self._kept_count + 1
        self._kept, self._kept_count = (None, 0) if send else (total, count)
        return total / count if send else None


@dataclass(eq=False)
class Gates:
    """The gates of a server and its clients."""

    push: Annotated[float, "weight c of the gate before pushes; 0 is open", NOT_NEGATIVE] = 0.0
    fetch: Annotated[float, "weight c of the gate before fetches; 0 is open", NOT_NEGATIVE] = 0.0
    push_every: Annotated[int, "pushes of which one is sent", COUNT] = 1
    fetch_every: Annotated[int, "fetches of which one is sent", COUNT] = 1
    withheld: Annotated[str, "a withheld push: reapply, accumulate or forget"] = "reapply"
    seed: Annotated[int, "where the gates' random streams begin", NOT_NEGATIVE] = 0

    def __post_init__(self) -> None:
        settings.check(self)
        if self.withheld not in WITHHELD:
            raise SyncError(f"withheld must be {', '.join(WITHHELD)}, not {self.withheld!r}")
        self._streams: dict[int, random.Random] = {}
        self._asked: dict[int, int] = {}
        self._last: dict[int, tuple[Tensor, int]] = {}

    def of_client(self, number: int) -> ClientGate:
        """The part that is with a client."""
        seed = f"push {self.seed} {number}"
        return ClientGate(self.push, self.push_every, self.withheld, seed)

    def pushed(
        self, client: int, contribution: Tensor | None, version: int
    ) -> tuple[Tensor | None, int]:
        """What the rule is given in place of what came, and the version that it is of."""
        if self.withheld != "reapply":
            return contribution, version
        if contribution is not None:
            self._last[client] = contribution, version
            return contribution, version
        return self._last.get(client, (None, version))

    def fetched(self, client: int, deviation: float) -> bool:
        """Whether the parameters that a client may have are sent."""
        stream = self._streams.get(client)
        if stream is None:
            stream = self._streams[client] = random.Random(f"fetch {self.seed} {client}")
        asked = self._asked.get(client, 0)
        self._asked[client] = asked + 1
        drawn = stream.random() < probability(deviation, self.fetch)
        return drawn and asked % self.fetch_every == 0

    def forget(self, client: int) -> None:
        """A client begins anew: what it sent last is not applied again."""
        self._last.pop(client, None)
