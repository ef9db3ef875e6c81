"""Exponential penalty: the rate falls by the same factor with every step of staleness.

    theta <- theta - rate exp(-kappa tau) g

Chan and Lane 2014, Distributed asynchronous optimization of convolutional neural networks,
Interspeech.  Their constant is not known; at kappa = 0.1 and staleness 127, one of 128
clients, the rate is 3e-6 of what it was, where SASGD has 8e-3.
With an optimizer other than plain descent it is its step that shrinks so.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from remotely_rl.settings import NOT_NEGATIVE
from remotely_rl.sync.rules.asynchronous import Asynchronous


@dataclass(eq=False)
class ExponentialPenalty(Asynchronous):
    """See the module's docstring."""

    kappa: Annotated[float, "how fast the rate falls with staleness", NOT_NEGATIVE] = 0.1

    def scale(self, staleness: int) -> float:
        return math.exp(-self.kappa * staleness)
