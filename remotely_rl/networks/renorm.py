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

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            scale, shift = self._of_batch(x) if self.is_learning else self._running()
            return torch.addcmul(shift, x, scale)  # one pass over the rows

    def _running(self) -> tuple[Tensor, Tensor]:
        """Return the scale and shift by the running statistics."""
        scale = self.weight * (self.variance + EPSILON).rsqrt()
        return scale, self.bias - self.mean * scale

    def _of_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scale and shift by a batch, whose statistics the running ones follow."""
        mean = x.mean(-2, keepdim=True)
        apart = x - mean
        variance = (apart * apart).mean(-2, keepdim=True)  # a sixth of torch.var_mean's time
        inverse = (variance + EPSILON).rsqrt()
        with torch.no_grad():
            running = (self.variance + EPSILON).sqrt()
            is_warm = self.batches >= WARM_UP
            r = torch.where(is_warm, (1 / (inverse * running)).clamp(1 / R_MAX, R_MAX), 1.0)
            d = torch.where(is_warm, ((mean - self.mean) / running).clamp(-D_MAX, D_MAX), 0.0)
            self.mean.lerp_(mean, 1 - MOMENTUM)
            self.variance.lerp_(variance, 1 - MOMENTUM)
            self.batches += 1
        scale = inverse * r
        return self.weight * scale, self.bias + self.weight * (d - mean * scale)


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
        with torch.autocast(x.device.type, enabled=False):
            normal = F.layer_norm(x.float(), x.shape[-1:])
            return torch.addcmul(self.bias, normal, self.weight)
