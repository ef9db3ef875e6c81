"""Delay compensation: a late gradient is moved to where the parameters are now.

Zheng et al. 2017, Asynchronous stochastic gradient descent with delay compensation,
https://arxiv.org/abs/1609.08326.  The gradient at the newest parameters is, to first order,
that at those which the client was sent plus the Hessian times the way between; the Hessian is
approximated by lambda g g^T, of which the diagonal is kept:

    g' = g + lambda g * g * (theta - theta_sent)

With `adaptive` (DC-ASGD-a) lambda is divided, elementwise, by the root of a
running mean of g^2; the paper takes 2 for it then, and 0.04, the default, without.

It is a correction of the gradient, and scales no step: an optimizer, whatever it makes of
gradients, is given what one at the newest parameters would be.
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

    def begin(self) -> None:
        self.sent = [self.snapshot()] * self.clients
        self.square = torch.zeros_like(self.vector.detach())
        self._moved, self._way = torch.empty_like(self.square), torch.empty_like(self.square)

    def direction(self, client: int, contribution: Tensor) -> Tensor:
        moved = torch.mul(contribution, contribution, out=self._moved)
        if self.adaptive:
            self.square.mul_(self.decay).add_(moved, alpha=1 - self.decay)
            moved.mul_(self.compensation / (self.square + EPSILON).sqrt())
        else:
            moved.mul_(self.compensation)
        way = torch.sub(self.vector.detach(), self.sent[client], out=self._way)
        return moved.mul_(way).add_(contribution)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "square": self.square}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.square.copy_(state["square"])

    def delivered(self, client: int, parameters: Tensor) -> None:
        self.sent[client] = self.snapshot()
