"""Distributions of returns as quantiles (QR-DQN), as pure functions.

Dabney et al. 2017, https://arxiv.org/abs/1710.10044; equation numbers are theirs.  Q quantiles are
the distribution in which each has probability 1 / Q.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def midpoints(count: int) -> Tensor:
    """Return the quantile levels [count], the midpoints of equal intervals of [0, 1].

    The quantiles at these levels minimize the Wasserstein distance to the distribution (lemma 2).
    """
    return (torch.arange(count) + 0.5) / count


def quantile_huber(quantiles: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Compute the quantile Huber loss [...] of quantiles [..., Q] and target samples [..., M].

    The loss of an error u = target - quantile is |tau - 1{u < 0}| times its Huber loss (equation
    10), summed over the quantiles and averaged over the targets (algorithm 1).

    All pairs would be Q * M errors per row, 40,000 for 200 quantiles.  Instead the targets are
    sorted.  Those within kappa below a quantile are then a slice, as are those within kappa above
    and those beyond, and a slice's loss follows from its count, its sum and its sum of squares.
    Sums are in float64, because their differences are comparatively small.
    """
    q, ordered = quantiles.double(), target.double().sort(-1).values
    powers = torch.stack([torch.ones_like(ordered), ordered, ordered.square()])
    sums = F.pad(powers.cumsum(-1), (1, 0))  # [3, ..., M + 1], of the first 0, 1, ... targets
    steps = (-math.inf, -kappa, 0.0, kappa, math.inf)
    edges = [torch.searchsorted(ordered, q.detach() + step) for step in steps]
    until = [sums.gather(-1, edge.expand(3, *edge.shape)) for edge in edges]
    far_below, below, above, far_above = (end - start for start, end in itertools.pairwise(until))

    def squares(part: Tensor) -> Any:
        count, linear, square = part
        return 0.5 * (square - 2 * q * linear + q.square() * count)

    def lines(part: Tensor, side: int) -> Any:
        count, linear, _ = part
        return kappa * (side * (linear - q * count) - 0.5 * kappa * count)

    tau = midpoints(q.shape[-1]).to(q)
    too_high = (1 - tau) * (squares(below) + lines(far_below, -1))
    too_low = tau * (squares(above) + lines(far_above, 1))
    loss: Tensor = (too_high + too_low).sum(-1) / ordered.shape[-1]
    return loss.to(quantiles.dtype)


def wasserstein(quantiles: Tensor, other: Tensor) -> Tensor:
    """Compute the 1-Wasserstein distance [...] of two distributions of Q quantiles each, [..., Q].

    It is the mean distance of their sorted quantiles, in units of returns.
    """
    return (quantiles.sort(-1).values - other.sort(-1).values).abs().mean(-1)
