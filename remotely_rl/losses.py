"""Losses of actor-critic methods, as pure functions of `[T, B]` tensors.

All are means over the valid rows, so that neither the length of a trajectory nor the
number of environments nor an autoreset row changes the size of a step.  IMPALA's paper
sums instead: a learning rate and a gradient clip found there do not carry over.
"""

import torch
from torch import Tensor


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean over the rows that are experience; 0 if there are none.  What masked rows hold,
    nan included, changes neither the mean nor its gradient."""
    kept = torch.where(valid, x, torch.zeros_like(x))
    return kept.sum() / valid.sum().clamp(min=1)


def log_prob_of(logits: Tensor, action: Tensor) -> Tensor:
    """Log-probability of each action taken: logits [..., actions], action [...] -> [...]."""
    log_prob = torch.log_softmax(logits, dim=-1)
    return log_prob.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def entropy_of(logits: Tensor) -> Tensor:
    """Entropy of each row's policy, in nats: logits [..., actions] -> [...]."""
    log_prob = torch.log_softmax(logits, dim=-1)
    return -(log_prob.exp() * log_prob).sum(-1)


def policy_gradient(log_prob: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
    """Raises the log-probability of each action by its advantage, a constant."""
    return -masked_mean(log_prob * advantage.detach(), valid)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, valid: Tensor, clip: float) -> Tensor:
    """Raises each action's probability by its advantage, up to `clip` away from the old policy.

    `log_ratio` is log pi - log mu.  Rows past the clip and still winning give no gradient.
    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7, negated.
    """
    ratio = log_ratio.exp()
    free = ratio * advantage.detach()
    held = ratio.clamp(1 - clip, 1 + clip) * advantage.detach()
    return -masked_mean(torch.minimum(free, held), valid)


def kl_estimate(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """How far pi has moved from mu, in nats, from mu's own actions: mean of r - 1 - log r."""
    return masked_mean(log_ratio.exp() - 1 - log_ratio, valid)


def squared_error(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Half the squared distance of V to its target, a constant."""
    return 0.5 * masked_mean((value - target.detach()).square(), valid)


def standardised(advantage: Tensor, valid: Tensor) -> Tensor:
    """Advantages with mean 0 and deviation 1 over the valid rows; masked rows are 0."""
    mean = masked_mean(advantage, valid)
    deviation = masked_mean((advantage - mean).square(), valid).sqrt()
    scaled = (advantage - mean) / (deviation + 1e-6)
    return torch.where(valid, scaled, torch.zeros_like(scaled))
