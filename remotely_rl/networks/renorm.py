"""BatchRenorm and StackedLayerNorm, normalizations of the features between layers.

BatchRenorm (Ioffe 2017, https://arxiv.org/abs/1702.03275) is batch normalization whose training is
close to its use: a batch is normalized by its own mean and deviation, then corrected towards the
running ones (r and d of equation 3), within bounds.  The gradient flows through the mean and
deviation of the batch, not through the correction.

Whether statistics are those of the batch is no matter of `train()` and `eval()`.  They are the
running ones, with which a model acts, except inside `batch_statistics`:

    with batch_statistics(layers):
        q = critics(obs, action)     # normalized by the batch, which the running statistics follow
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remotely_rl.networks.layers import without_autocast

MOMENTUM, EPSILON = 0.99, 1e-3
R_MAX, D_MAX = 3.0, 5.0  # bounds of the correction
# Batches until the running statistics are close enough to correct towards; plain batch
# normalization before.
WARM_UP = 100_000


class BatchRenorm(nn.Module):
    """Normalizes each feature over the rows: [..., N, features] of any leading dimensions."""

    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, *shape: int):
        """`shape` is that of the parameters: 1 in place of the rows."""
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("batches", torch.zeros(()))
        self.is_learning = False  # see `batch_statistics`

    def forward(self, x: Tensor) -> Tensor:
        with without_autocast(x):
            x = x.float()
            if self.is_learning:
                return self._by_batch(x)
            scale = self.weight * (self.variance + EPSILON).rsqrt()
            return torch.addcmul(self.bias - self.mean * scale, x, scale)  # one pass over the rows

    def _by_batch(self, x: Tensor) -> Tensor:
        """Normalize by a batch, whose statistics the running ones follow."""
        with torch.no_grad():
            mean = x.mean(-2, keepdim=True)
            variance = (x - mean).square_().mean(-2, keepdim=True)  # a sixth of var_mean's time
            inverse = (variance + EPSILON).rsqrt()
            running = (self.variance + EPSILON).sqrt()
            is_warm = self.batches >= WARM_UP
            r = torch.where(is_warm, (1 / (inverse * running)).clamp(1 / R_MAX, R_MAX), 1.0)
            d = torch.where(is_warm, ((mean - self.mean) / running).clamp(-D_MAX, D_MAX), 0.0)
            self.mean.lerp_(mean, 1 - MOMENTUM)
            self.variance.lerp_(variance, 1 - MOMENTUM)
            self.batches += 1
        return _Renormalized.apply(x, self.weight, self.bias, mean, inverse, r, d)  # type: ignore[no-untyped-call,no-any-return]


class _Renormalized(torch.autograd.Function):
    """weight * ((x - mean) * inverse * r + d) + bias, where mean and inverse are those of x.

    Autograd would go back through the mean and the deviation step by step, in four times as many
    passes over the rows.  With y = (x - mean) * inverse, and averages over the rows, the gradient
    in x is

        weight * inverse * r * (slope - average(slope) - y * average(slope * y))
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        inverse: Tensor,
        r: Tensor,
        d: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse, r, d)
        scale = weight * inverse * r
        return torch.addcmul(torch.addcmul(bias, weight, d) - mean * scale, x, scale)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,), (x, weight, mean, inverse, r, d) = slopes, ctx.saved_tensors
        of_bias = slope.sum(-2, keepdim=True)
        along = ((slope * x).sum(-2, keepdim=True) - mean * of_bias) * inverse  # sum of slope * y
        of_weight = torch.addcmul(d * of_bias, r, along)
        of_x = None
        if ctx.needs_input_grad[0]:
            scale = weight * inverse * r
            of_rows = scale * inverse * along / -x.shape[-2]
            rest = -mean * of_rows - scale * of_bias / x.shape[-2]
            of_x = torch.addcmul(rest, x, of_rows).addcmul_(slope, scale)
        return of_x, of_weight, of_bias, None, None, None, None


def renorms_of(module: nn.Module) -> list[BatchRenorm]:
    """Return the layers of this kind in a module, for `batch_statistics`."""
    return [part for part in module.modules() if isinstance(part, BatchRenorm)]


@contextmanager
def batch_statistics(layers: Sequence[BatchRenorm]) -> Iterator[None]:
    """Within this context, these layers normalize by the batch, and learn from it."""
    for layer in layers:
        layer.is_learning = True
    try:
        yield
    finally:
        for layer in layers:
            layer.is_learning = False


class StackedLayerNorm(nn.Module):
    """Layer normalization for each member of a stack: [members, N, features].

    Ba et al. 2016, https://arxiv.org/abs/1607.06450.
    """

    def __init__(self, members: int, features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, features))
        self.bias = nn.Parameter(torch.zeros(members, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        with without_autocast(x):
            normal = F.layer_norm(x.float(), x.shape[-1:])
            return torch.addcmul(first(self.bias, len(x)), normal, first(self.weight, len(x)))


def first(parameter: Tensor, count: int) -> Tensor:
    """Return the parameters of the first members of a stack: itself, if these are all."""
    return parameter if len(parameter) == count else parameter[:count]
