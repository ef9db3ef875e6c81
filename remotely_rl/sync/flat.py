"""A module whose parameters are views of one flat vector, and so are their gradients.

A vector comes and goes whole, in one copy; torch's modules never know of it.  Weights of
convolutions that are kept channels last, which CPUs compute faster with, lie so in it.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Flat:
    """See the module's docstring.  `vector` [P] and `gradient` [P] are the module's own memory."""

    def __init__(self, module: nn.Module):
        parameters = list(module.parameters())
        self.module = module
        self.vector = torch.cat([_in_order(parameter.detach()) for parameter in parameters])
        self.gradient = torch.zeros_like(self.vector)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            parameter.grad = _shaped(self.gradient[begin:end], parameter)
            parameter.data = _shaped(self.vector[begin:end], parameter)
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


def _last(parameter: Tensor) -> bool:
    return not parameter.is_contiguous() and parameter.is_contiguous(
        memory_format=torch.channels_last
    )


def _in_order(parameter: Tensor) -> Tensor:
    return (parameter.permute(0, 2, 3, 1) if _last(parameter) else parameter).reshape(-1)


def _shaped(part: Tensor, like: Tensor) -> Tensor:
    if not _last(like):
        return part.view(like.shape)
    count, channels, height, width = like.shape
    return part.view(count, height, width, channels).permute(0, 3, 1, 2)
