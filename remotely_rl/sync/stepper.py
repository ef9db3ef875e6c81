"""A torch optimizer of one flat vector, whose steps can be scaled.

A rule that makes a stale contribution count for less scales the *step*.  To scale the gradient
is the same for plain descent alone: RMSProp and Adam divide by the size of gradients, and the
scale with it, so that at a constant staleness nothing is left of it.  Hence the optimizer's
state (momentum, mean squares) sees the gradient as it came, and what the optimizer makes of
it is scaled:

    by a number     through the rate of that one step: no copy, no pass over the vector
    elementwise     the vector is remembered, and goes a part of the way that it was stepped;
                    for plain descent the gradient is divided, which is the same and cheaper

An optimizer that is not known to step in proportion to its rate (Rprop, ASGD, Adafactor, one of
your own) is scaled by a number in the second way too.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from remotely_rl.sync.client import MakeOptimizer

# Whose step is their rate times what they make of the gradient.
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
        self._room: Tensor | None = None

    def step(self, direction: Tensor, scale: float = 1.0, divisors: Tensor | None = None) -> None:
        """Moves the vector against `direction` [P], as the optimizer does with a gradient, but
        `scale` times as far, and divided by `divisors` [P] if there are any."""
        if divisors is None and (scale == 1.0 or type(self._optimizer) in PROPORTIONAL):
            self._step(direction, scale)
        elif divisors is not None and self._is_plain():
            # Room that is asked for anew each time costs more than what is computed in it.
            self._step(torch.div(direction, divisors, out=self._space()), scale)
        else:
            before = self._space().copy_(self.vector.detach())
            self._step(direction)
            way = self.vector.detach().sub_(before)
            if divisors is None:
                torch.add(before, way, alpha=scale, out=way)
            else:
                torch.addcdiv(before, way, divisors, value=scale, out=way)

    def set_rate(self, rate: float) -> None:
        """Takes steps at this rate from here on."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def state(self) -> dict[str, Any]:
        """The optimizer's."""
        return self._optimizer.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave."""
        # Torch would keep the tensors that it is given, and step them.
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
        """Whether a step is the gradient times the rate, and nothing is remembered."""
        return type(self._optimizer) is torch.optim.SGD and not any(
            group["momentum"] or group["weight_decay"] for group in self._optimizer.param_groups
        )

    def _space(self) -> Tensor:
        if self._room is None:
            self._room = torch.empty_like(self.vector.detach())
        return self._room
