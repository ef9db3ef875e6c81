"""Client: the part of a rule that runs on a worker, between two pushes.

Like the rule it has no I/O.  A worker calls `next_push`, pushes the result, and passes the reply to
`receive`.  `gradient` is a function from parameters [P] to a gradient [P].
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from remotely_rl.sync.gates import ClientGate

GradientFunction = Callable[[Tensor], Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


class Client:
    """Pushes the gradient at its parameters.

    With `accumulate` > 1 it pushes the sum of that many gradients at the same parameters, as in
    asynchronous n-step methods (Mnih et al. 2016, https://arxiv.org/abs/1602.01783, algorithm S2).
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

    def next_push(self, gradient: GradientFunction) -> Tensor | None:
        """Return what to push; None if the gate withholds it."""
        contribution = self.contribution(gradient)
        return contribution if self.gate is None else self.gate(contribution)

    def contribution(self, gradient: GradientFunction) -> Tensor:
        """Compute a contribution from the client's parameters."""
        return self.accumulated(gradient, self.parameters)

    def accumulated(self, gradient: GradientFunction, parameters: Tensor) -> Tensor:
        """Return the sum of `accumulate` gradients at these parameters."""
        if self.accumulate == 1:
            return gradient(parameters)
        total = gradient(parameters).clone()
        for _ in range(self.accumulate - 1):
            total += gradient(parameters)
        return total

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the client's own optimizer, if it has one."""

    def receive(self, parameters: Tensor | None, version: int, deviation: float) -> None:
        """Process a reply: install parameters of `version`, or keep the old ones if None."""
        if self.gate is not None:
            self.gate.deviation = deviation
        if parameters is not None:
            self.parameters = parameters
            self.version = version


class LocalStepsClient(Client):
    """Takes `steps` steps with its own optimizer, whose state stays with the client.

    It pushes the difference, start minus end, in place of a gradient.  With `push_parameters` it
    pushes the parameters at the end instead, and keeps them.
    """

    def __init__(
        self, plain: Client, steps: int, optimizer: MakeOptimizer, push_parameters: bool = False
    ):
        super().__init__(
            plain.number, plain.parameters, plain.version, plain.gate, plain.accumulate
        )
        self.steps = steps
        self.push_parameters = push_parameters
        self._local = nn.Parameter(self.parameters.clone())
        self._optimizer = optimizer([self._local])

    def set_rate(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def contribution(self, gradient: GradientFunction) -> Tensor:
        with torch.no_grad():
            self._local.copy_(self.parameters)
        for _ in range(self.steps):
            self._local.grad = self.accumulated(gradient, self._local.detach())
            self._optimizer.step()
        end = self._local.detach().clone()
        if self.push_parameters:
            self.parameters = end
            return end
        return self.parameters - end
