"""A module whose parameters are views of one flat vector, and so are their gradients.

A vector comes and goes whole, in one copy; torch's modules never know of it.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Flat:
    """See the module's docstring.  `vector` [P] and `gradient` [P] are the module's own memory."""

    def __init__(self, module: nn.Module):
        parameters = list(module.parameters())
        self.module = module
        self.vector = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.gradient = torch.zeros_like(self.vector)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            parameter.data = self.vector[begin:end].view_as(parameter)
            parameter.grad = self.gradient[begin:end].view_as(parameter)
            begin = end

    def gradient_at(self, parameters: Tensor, loss: Callable[[], Tensor]) -> Tensor:
        """The gradient [P] of a loss of the module, at `parameters` [P]; the caller's own."""
        self.vector.copy_(parameters)
        self.gradient.zero_()
        loss().backward()  # type: ignore[no-untyped-call]
        return self.gradient.clone()
