"""Resets: weights that forget, so that a network can be trained often on few steps.

A network that is trained many times on each step overfits what it saw first, and learns ever more
slowly.  Resetting it now and then, with the replay kept, lets it use the ratio (Nikishin et al.
2022, https://arxiv.org/abs/2205.07802).  BBF (Schwarzer et al. 2023,
https://arxiv.org/abs/2305.19452) resets the last layers whole and moves the convolutions half of
the way, and after each reset begins with a long n and a short horizon, which it anneals.
"""

import math

import torch
from torch import nn

from remotely_rl.networks import precision

KEPT = 0.5  # of a convolution's weights at a reset; of the layers after it nothing is kept


@torch.no_grad()
def shrink_and_perturb(model: nn.Module, initial: nn.Module) -> None:
    """Move a model's parameters to those of `initial`: convolutions by half, the others whole.

    Statistics of the input stay as they are.
    """
    for part, began in zip(model.modules(), initial.modules(), strict=True):
        kept = KEPT if isinstance(part, precision.CONVOLUTIONS) else 0.0
        pairs = zip(part.parameters(recurse=False), began.parameters(recurse=False), strict=True)
        for parameter, start in pairs:
            parameter.mul_(kept).add_(start, alpha=1 - kept)


def annealed(start: float, end: float, done: float) -> float:
    """From `start` to `end` as `done` goes from 0 to 1, by equal factors."""
    return start * math.exp(done * math.log(end / start))


def annealed_gamma(start: float, end: float, done: float) -> float:
    """The same for a discount: the horizon 1 / (1 - gamma) grows by equal factors."""
    return 1 - annealed(1 - start, 1 - end, done) if end < 1 else end
