"""Losses of actor-critic methods, as pure functions of rows; all are means over them.

The mean makes the size of a step independent of how many rows there are.  IMPALA's paper
sums instead: a learning rate and a gradient clip found there do not carry over.  Rows that
are no experience are left out before, not masked here.
"""

import torch
from torch import Tensor


def log_prob_of(logits: Tensor, action: Tensor) -> Tensor:
    """Log-probability of each action taken: logits [..., actions], action [...] -> [...]."""
    log_prob = torch.log_softmax(logits, dim=-1)
    return log_prob.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy of each row's policy, in nats: logits [..., actions] -> [...]."""
    log_prob = torch.log_softmax(logits, dim=-1)
    return -(log_prob.exp() * log_prob).sum(-1)


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
