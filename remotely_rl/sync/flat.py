"""A module whose parameters are views of one flat vector, and so are their gradients.

A vector comes and goes whole, in one copy; torch's modules never know of it.  Parameters lie in
it row by row, whatever their memory format was: a model that is sent arrives contiguous, and
a vector has to mean the same where it is made and where it is used.
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
            parameter.grad = self.gradient[begin:end].view(parameter.shape)
            parameter.data = self.vector[begin:end].view(parameter.shape)
            begin = end

    def load(self, parameters: Tensor) -> None:
        """Takes over parameters [P]."""
        self.vector.copy_(parameters)

    def gradient_of(self, loss: Tensor, max_norm: float = 0.0) -> Tensor:
        """The gradient [P] of a loss of the module, its norm bounded; the caller's own."""
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if max_norm:
            nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)
        return self.gradient.clone()

    def gradient_at(self, parameters: Tensor, loss: Callable[[], Tensor]) -> Tensor:
        """The gradient [P] of what `loss` computes, at `parameters` [P]; the caller's own."""
        self.load(parameters)
        return self.gradient_of(loss())
