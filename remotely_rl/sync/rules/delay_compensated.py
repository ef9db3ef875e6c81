"""Delay compensation: a late gradient is corrected to the current parameters.

Zheng et al. 2017, Asynchronous stochastic gradient descent with delay compensation,
https://arxiv.org/abs/1609.08326.  The gradient at the newest parameters is, to first order,
the gradient at those that the client received plus the Hessian times their difference.  The
Hessian is approximated by the diagonal of lambda g g^T:

    g' = g + lambda g * g * (theta - theta_sent)

With `adaptive` (DC-ASGD-a) lambda is divided, elementwise, by the square root of a running mean
of g^2; the paper then uses lambda = 2, and 0.04, the default, without.

The rule corrects the gradient and scales no step: any optimizer receives an estimate of the
gradient at the newest parameters.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from remotely_rl.settings import FRACTION, NOT_NEGATIVE
from remotely_rl.sync.rules.asynchronous import Asynchronous

EPSILON = 1e-7


@dataclass(eq=False)
class DelayCompensated(Asynchronous):
    """See the module's docstring."""

    compensation: Annotated[float, "lambda; 0 is asynchronous", NOT_NEGATIVE] = 0.04
    adaptive: Annotated[bool, "divide lambda by the root of a mean of g^2"] = False
    decay: Annotated[float, "of that mean", FRACTION] = 0.95

    def setup(self) -> None:
        self.sent = [self.snapshot()] * self.clients
        self.square = torch.zeros_like(self.vector.detach())
        self._corrected = torch.empty_like(self.square)
        self._difference = torch.empty_like(self.square)

    def direction(self, client: int, contribution: Tensor) -> Tensor:
        corrected = torch.mul(contribution, contribution, out=self._corrected)
        if self.adaptive:
            self.square.mul_(self.decay).add_(corrected, alpha=1 - self.decay)
            corrected.mul_(self.compensation / (self.square + EPSILON).sqrt())
        else:
            corrected.mul_(self.compensation)
        difference = torch.sub(self.vector.detach(), self.sent[client], out=self._difference)
        return corrected.mul_(difference).add_(contribution)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "square": self.square}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.square.copy_(state["square"])

    def on_fetch(self, client: int, parameters: Tensor) -> None:
        self.sent[client] = self.snapshot()
