"""Asynchronous rules: each contribution is an immediate step, and clients never wait.

They differ in how far (`scale`) and in which `direction` a late contribution moves the parameters.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from remotely_rl.errors import SyncError
from remotely_rl.settings import FRACTION, NOT_NEGATIVE
from remotely_rl.sync.rule import Accepted, Reply, Rule


@dataclass(eq=False)
class Asynchronous(Rule):
    """Asynchronous: each contribution is an immediate step.

        theta <- theta - rate g

    Dean et al. 2012; Mnih et al. 2016, https://arxiv.org/abs/1602.01783.  No client waits; with N
    clients of the same speed a contribution is N - 1 steps stale.  Pushes are processed one at a
    time, as in Dean's parameter server; Mnih's threads write without locks.

    A rule that only scales steps overrides `scale`.
    """

    def on_push(self, client: int, contribution: Tensor, staleness: int) -> Reply:
        self.step(self.direction(client, contribution), self.scale(staleness))
        return Reply(Accepted.COUNTED, self.version, staleness, self.parameters)

    def direction(self, client: int, contribution: Tensor) -> Tensor:
        """Return the direction of the step for a contribution."""
        return contribution


READINGS = ("max1", "plus1")


def check_reading(reading: str, allowed: tuple[str, ...] = READINGS) -> None:
    """Raise SyncError for a reading that a rule does not support."""
    if reading not in allowed:
        raise SyncError(f"at_zero must be {' or '.join(allowed)}, not {reading!r}")


def divisor(staleness: int, reading: str) -> int:
    """Return s(tau)."""
    return staleness + 1 if reading == "plus1" else max(staleness, 1)


@dataclass(eq=False)
class StalenessScaled(Asynchronous):
    """Staleness-scaled (SASGD): the staler a contribution is, the smaller its step.

        theta <- theta - (rate / s(tau)) g

    Zhang, Gupta, Lian, Liu 2015, https://arxiv.org/abs/1511.05950.  The paper's s(tau) = tau leaves
    tau = 0 undefined.  There are two readings: `max1`, max(tau, 1), does not scale the step there;
    `plus1`, tau + 1, is that of the FASGD paper's simulator.

    The papers use plain descent.  For another optimizer, the rule divides its step.
    """

    at_zero: Annotated[str, "what staleness is divided by: max1 or plus1"] = "max1"

    def setup(self) -> None:
        check_reading(self.at_zero)

    def scale(self, staleness: int) -> float:
        return 1 / divisor(staleness, self.at_zero)


@dataclass(eq=False)
class ExponentialPenalty(Asynchronous):
    """Exponential penalty: the rate decays exponentially with staleness.

        theta <- theta - rate exp(-kappa tau) g

    Chan and Lane 2014, Distributed asynchronous optimization of convolutional neural networks,
    Interspeech.  Their constant is unknown.  At kappa = 0.1 and a staleness of 127, that of 128
    equal clients, the factor is 3e-6, where SASGD's is 8e-3.  For an optimizer other than plain
    descent, the rule scales its step.
    """

    kappa: Annotated[float, "decay of the rate with staleness", NOT_NEGATIVE] = 0.1

    def scale(self, staleness: int) -> float:
        return math.exp(-self.kappa * staleness)


EPSILON = 1e-7


@dataclass(eq=False)
class DelayCompensated(Asynchronous):
    """Delay compensation: a late gradient is corrected to the current parameters.

    Zheng et al. 2017, Asynchronous stochastic gradient descent with delay compensation,
    https://arxiv.org/abs/1609.08326.  The gradient at the newest parameters is, to first order,
    the gradient at those that the client received plus the Hessian times their difference.  The
    Hessian is approximated by the diagonal of lambda g g^T:

        g' = g + lambda g * g * (theta - theta_sent)

    With `adaptive` (DC-ASGD-a) lambda is divided, elementwise, by the square root of a running mean
    of g^2; the paper then uses lambda = 2, and 0.04, the default, without.

    The rule corrects the gradient and does not scale the step: any optimizer receives an estimate
    of the gradient at the newest parameters.
    """

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
