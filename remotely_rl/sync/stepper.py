"""Stepper: a torch optimizer of one flat vector, whose steps can be scaled.

A rule that gives a stale contribution less weight scales the *step*.  Scaling the gradient is the
same for plain descent only: RMSProp and Adam divide by the size of gradients, which cancels a
constant scale.  So the optimizer's state (momentum, mean squares) sees unscaled gradients, and the
resulting step is scaled:

    by a number     through the learning rate of that step: no copy, no pass over the vector
    elementwise     by keeping the old vector and scaling the difference; for plain descent the
                    gradient is divided, which is the same and cheaper

An optimizer whose step may not be proportional to its rate (Rprop, ASGD, Adafactor, one of your
own) is scaled by a number in the second way too.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from remotely_rl.sync.client import MakeOptimizer

# Optimizers whose step is proportional to their learning rate.
PROPORTIONAL = (
    torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adam, torch.optim.AdamW,
    torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adagrad,
    torch.optim.Adadelta,
)  # fmt: skip


class Stepper:
    """See the module's docstring."""

    def __init__(self, vector: nn.Parameter, optimizer: MakeOptimizer):
        self.vector = vector
        self._optimizer = optimizer([vector])
        self._scratch_memory: Tensor | None = None

    def step(self, direction: Tensor, scale: float = 1.0, divisors: Tensor | None = None) -> None:
        """Step against `direction` [P] as the optimizer does for a gradient, but `scale` times as
        far, and divided elementwise by `divisors` [P] if given."""
        if divisors is None and (scale == 1.0 or type(self._optimizer) in PROPORTIONAL):
            self._step(direction, scale)
        elif divisors is not None and self._is_plain():
            # Allocating the buffer at each step would cost more than the computation.
            self._step(torch.div(direction, divisors, out=self._scratch()), scale)
        else:
            before = self._scratch().copy_(self.vector.detach())
            self._step(direction)
            difference = self.vector.detach().sub_(before)
            if divisors is None:
                torch.add(before, difference, alpha=scale, out=difference)
            else:
                torch.addcdiv(before, difference, divisors, value=scale, out=difference)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def state(self) -> dict[str, Any]:
        """Return the optimizer's state."""
        return self._optimizer.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        # Torch would keep these tensors, and change them in place.
        self._optimizer.load_state_dict(copy.deepcopy(state))

    def _step(self, direction: Tensor, scale: float = 1.0) -> None:
        self.vector.grad = direction
        rates = [group["lr"] for group in self._optimizer.param_groups]
        try:
            for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * scale
            self._optimizer.step()
        finally:
            for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _is_plain(self) -> bool:
        """Whether a step is the gradient times the rate, without any state."""
        return type(self._optimizer) is torch.optim.SGD and not any(
            group["momentum"] or group["weight_decay"] for group in self._optimizer.param_groups
        )

    def _scratch(self) -> Tensor:
        if self._scratch_memory is None:
            self._scratch_memory = torch.empty_like(self.vector.detach())
        return self._scratch_memory
