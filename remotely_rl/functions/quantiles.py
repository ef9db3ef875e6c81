"""Distributions of returns by their quantiles (QR-DQN), as pure functions.

Dabney et al. 2017, https://arxiv.org/abs/1710.10044; equation numbers are theirs.  Q numbers stand
for the distribution that has each of them with probability 1 / Q.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def midpoints(count: int) -> Tensor:
    """The probabilities [count] up to which each of so many quantiles is learnt.

    They are in the middle of equal parts: no other quantiles are nearer to the distribution, by
    its Wasserstein distance (lemma 2).
    """
    return (torch.arange(count) + 0.5) / count


def quantile_huber(quantiles: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """The loss [...] of quantiles [..., Q] whose targets are numbers [..., M], all as probable.

    Of the error u = target - quantile it is |tau - 1{u < 0}| times its Huber loss (equation 10),
    summed over the quantiles and averaged over the targets (algorithm 1).

    Errors of all pairs are Q * M numbers a row, 40,000 for 200 quantiles.  Instead the targets are
    sorted.  Those at less than kappa below a quantile are then a slice, as are those above and
    those beyond, and a slice's loss follows from its count and its sums of targets and of squares.
    Sums are in float64: their differences are small beside them.
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
    """The 1-Wasserstein distance [...] of two distributions, by as many quantiles [..., Q] of each.

    It is the mean distance of their sorted quantiles, in units of returns.
    """
    return (quantiles.sort(-1).values - other.sort(-1).values).abs().mean(-1)
