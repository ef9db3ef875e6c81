"""Losses of actor-critic methods, as pure functions of rows; all are means over them.

The mean makes the size of a step independent of how many rows there are.  IMPALA's paper
sums instead: a learning rate and a gradient clip found there do not carry over.  Rows that
are no experience are left out before, not masked here.
"""

import torch
from torch import Tensor


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Raises each action's log-probability by its advantage.

    Williams 1992; with V-trace's advantages it is section 4.2 of Espeholt et al. 2018.
    """
    return -(log_prob * advantage).mean()


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Raises each action's probability by its advantage, up to `clip` away from the old policy.

    `log_ratio` is log pi - log pi_old.  Where nothing has moved yet its gradient is the
    policy gradient's, advantage times that of log pi; rows past the clip and still winning
    give none.  Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7, negated.
    """
    ratio = log_ratio.exp()
    free = ratio * advantage
    held = ratio.clamp(1 - clip, 1 + clip) * advantage
    return -torch.minimum(free, held).mean()


def squared_error(value: Tensor, target: Tensor) -> Tensor:
    """Half the squared distance of V to its target."""
    return 0.5 * (value - target).square().mean()


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """How far pi has moved from pi_old, in nats, from pi_old's own actions: r - 1 - log r."""
    return (log_ratio.exp() - 1 - log_ratio).mean()
