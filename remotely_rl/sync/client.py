"""What a client does between two pushes: the part of a rule that runs at the worker.

Pure as a rule is.  A worker asks its client for the next contribution, pushes that, and hands
it the reply.  `gradient` is a function from parameters [P] to a gradient [P].
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from remotely_rl.sync.gates import ClientGate

GradientOf = Callable[[Tensor], Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


class Client:
    """Pushes the gradient at its parameters.

    With `accumulate` it is the sum of so many, at parameters that it leaves as they are: one
    shared update a segment, as asynchronous n-step methods have it (Mnih et al. 2016,
    https://arxiv.org/abs/1602.01783, algorithm S2).
    """

    def __init__(
        self,
        number: int,
        parameters: Tensor,
        version: int,
        gate: ClientGate | None = None,
        accumulate: int = 1,
    ):
        self.number = number
        self.parameters = parameters
        self.version = version
        self.gate = gate
        self.accumulate = accumulate

    def work(self, gradient: GradientOf) -> Tensor | None:
        """Returns what is to be pushed; None if its gate withholds it."""
        contribution = self.contribution(gradient)
        return contribution if self.gate is None else self.gate(contribution)

    def contribution(self, gradient: GradientOf) -> Tensor:
        """What this kind of client makes of its parameters."""
        return self.summed(gradient, self.parameters)

    def summed(self, gradient: GradientOf, parameters: Tensor) -> Tensor:
        """The sum of as many gradients as are accumulated."""
        if self.accumulate == 1:
            return gradient(parameters)
        total = gradient(parameters).clone()
        for _ in range(self.accumulate - 1):
            total += gradient(parameters)
        return total

    def set_rate(self, rate: float) -> None:
        """Takes steps of its own at this rate from here on, if it takes any."""

    def hear(self, parameters: Tensor | None, version: int, deviation: float) -> None:
        """Takes in a reply: parameters of `version`, or none to go on with its own."""
        if self.gate is not None:
            self.gate.deviation = deviation
        if parameters is not None:
            self.parameters = parameters
            self.version = version


class Exploring(Client):
    """Takes `steps` steps by an optimizer of its own, whose state stays with it.

    Pushes how far it went, start less end: what descent calls a gradient.  With `whole` it
    pushes where it is instead.
    """

    def __init__(self, plain: Client, steps: int, optimizer: MakeOptimizer, whole: bool = False):
        super().__init__(
            plain.number, plain.parameters, plain.version, plain.gate, plain.accumulate
        )
        self.steps = steps
        self.whole = whole
        self._local = nn.Parameter(self.parameters.clone())
        self._optimizer = optimizer([self._local])

    def set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def contribution(self, gradient: GradientOf) -> Tensor:
        with torch.no_grad():
            self._local.copy_(self.parameters)
        for _ in range(self.steps):
            self._local.grad = self.summed(gradient, self._local.detach())
            self._optimizer.step()
        end = self._local.detach().clone()
        if self.whole:
            self.parameters = end
            return end
        return self.parameters - end
