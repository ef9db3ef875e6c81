"""Exponential penalty: the rate decays exponentially with staleness.

    theta <- theta - rate exp(-kappa tau) g

Chan and Lane 2014, Distributed asynchronous optimization of convolutional neural networks,
Interspeech.  Their constant is not known.  At kappa = 0.1 and a staleness of 127, that of 128
equal clients, the factor is 3e-6, where SASGD's is 8e-3.  With an optimizer other than plain
descent, its step is scaled so.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from remotely_rl.settings import NOT_NEGATIVE
from remotely_rl.sync.rules.asynchronous import Asynchronous


@dataclass(eq=False)
class ExponentialPenalty(Asynchronous):
    """See the module's docstring."""

    kappa: Annotated[float, "decay of the rate with staleness", NOT_NEGATIVE] = 0.1

    def scale(self, staleness: int) -> float:
        return math.exp(-self.kappa * staleness)
