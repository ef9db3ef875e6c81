"""FASGD: a rate for each parameter, smaller where gradients vary or are stale.

Odena 2016, https://arxiv.org/abs/1601.04033, equations 4 to 8.  Each arriving gradient updates the
statistics, then the parameters, elementwise:

    n <- gamma n + (1 - gamma) g^2                              (4)
    b <- gamma b + (1 - gamma) g                                (5)
    v <- beta v + (1 - beta) sqrt(max(n - b^2, 0) + eps)        (6)
    theta <- theta - rate g / (v s(tau))                        (7, 8)

The paper prints 1 / sqrt(.) in (6) and divides by v in (7).  That multiplies by the deviation,
where its text and its equation 9 divide by it.  There are three modes:

    std       as above
    literal   (6) as printed
    fred      as in the authors' code: v <- beta v + (1 - beta) |g|, and divides by v + 0.001;
              `deviation_start=0,at_zero=plus1` also starts and divides as their code does

The paper uses plain descent.  The step of another optimizer is divided by v s(tau), elementwise.
RMSProp and Adam already divide by the size of gradients, so they then need a lower rate.  Unless
you want that, give the spec a rate (`fasgd:rate=0.001` is plain descent) or use `sgd`.

The paper does not give gamma, beta and eps; the code's only decay is 0.9.  v starts at
`deviation_start`: from 0, the first step in mode `std` would be 33 times the rate, whatever the
gradient.  Gates use the mean of v as `deviation` (equation 9).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from remotely_rl.errors import SyncError
from remotely_rl.settings import FRACTION, NOT_NEGATIVE
from remotely_rl.sync.rule import Accepted, Reply
from remotely_rl.sync.rules.asynchronous import Asynchronous, check_reading, divisor

MODES = ("std", "literal", "fred")
FRED_EPSILON = 1e-3


@dataclass(eq=False)
class Fasgd(Asynchronous):
    """See the module's docstring."""

    mode: Annotated[str, "std, literal or fred"] = "std"
    gamma: Annotated[float, "decay of the gradients' moments", FRACTION] = 0.9
    beta: Annotated[float, "decay of the deviation", FRACTION] = 0.9
    epsilon: Annotated[float, "added under the root", NOT_NEGATIVE] = 1e-4
    deviation_start: Annotated[float, "v at the start", NOT_NEGATIVE] = 1.0
    at_zero: Annotated[str, "what staleness is divided by: max1 or plus1"] = "max1"

    def setup(self) -> None:
        if self.mode not in MODES:
            raise SyncError(f"mode must be {', '.join(MODES)}, not {self.mode!r}")
        check_reading(self.at_zero)
        like = self.vector.detach()
        self.n, self.b = torch.zeros_like(like), torch.zeros_like(like)
        self.v = torch.full_like(like, self.deviation_start)
        # Allocating it in each push would cost more than the computation.
        self._spread = torch.empty_like(like)
        self.deviation = self.deviation_start

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        self.step(contribution, self.scale(staleness), self.divisors(contribution))
        return Reply(Accepted.COUNTED, self.version, staleness, self.parameters)

    def scale(self, staleness: int) -> float:
        return 1 / divisor(staleness, self.at_zero)

    def divisors(self, g: Tensor) -> Tensor:
        """Add gradient `g` [P] to the statistics; return the divisors [P] of its step."""
        if self.mode == "fred":
            spread = torch.abs(g, out=self._spread)
            self.v.mul_(self.beta).add_(spread, alpha=1 - self.beta)
            divisors = torch.add(self.v, FRED_EPSILON, out=spread)
        else:
            self.n.mul_(self.gamma).addcmul_(g, g, value=1 - self.gamma)
            self.b.mul_(self.gamma).add_(g, alpha=1 - self.gamma)
            spread = torch.addcmul(self.n, self.b, self.b, value=-1, out=self._spread)
            spread.clamp_(min=0).add_(self.epsilon).sqrt_()
            if self.mode == "literal":
                spread.reciprocal_()
            self.v.mul_(self.beta).add_(spread, alpha=1 - self.beta)
            divisors = self.v
        self.deviation = float(self.v.mean())
        return divisors

    def state(self) -> dict[str, object]:
        return {**super().state(), "n": self.n, "b": self.b, "v": self.v}

    def load(self, state: dict[str, object]) -> None:
        super().load(state)
        for name in ("n", "b", "v"):
            getattr(self, name).copy_(state[name])
        self.deviation = float(self.v.mean())
