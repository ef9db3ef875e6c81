"""Flat: a module whose parameters, and their gradients, are views of one flat vector.

The vector is sent and received in one copy, invisibly to torch's modules.  Parameters are stored in
row-major order, whatever their memory format was: a model that is sent arrives contiguous, and a
vector must mean the same to sender and receiver.
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
        """Copy parameters [P] into the module."""
        self.vector.copy_(parameters)

    def gradient_of(self, loss: Tensor, clip: Callable[[], object] = lambda: None) -> Tensor:
        """Return a copy of the gradient [P] of a loss, after `clip()` has clipped the original."""
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        clip()
        return self.gradient.clone()

    def gradient_at(self, parameters: Tensor, loss: Callable[[], Tensor]) -> Tensor:
        """Return a copy of the gradient [P] of `loss()` at `parameters` [P]."""
        self.load(parameters)
        return self.gradient_of(loss())
