"""Losses: pure functions, which return means over rows, except `huber` and `soft_value`.

The mean makes the size of a step independent of the number of rows.  IMPALA's paper sums instead,
so its learning rate and its bound of the gradient's norm do not carry over.  The caller passes
rows of experience only (`experience/masked_rows.py`); nothing is masked here.
"""

import torch
from torch import Tensor


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Compute the policy gradient loss: -log pi(a) * advantage.

    Williams 1992 (REINFORCE); with V-trace's advantages, section 4.2 of Espeholt et al. 2018.
    """
    return -(log_prob * advantage).mean()


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Compute PPO's clipped surrogate objective, negated.

    `log_ratio` is log pi - log pi_old.  At ratio 1 the gradient is the policy gradient.  It is
    zero for rows that are past the clip on the side that their advantage favours.
    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7.
    """
    ratio = log_ratio.exp()
    unclipped = ratio * advantage
    clipped = ratio.clamp(1 - clip, 1 + clip) * advantage
    return -torch.minimum(unclipped, clipped).mean()


def clip_fraction(log_ratio: Tensor, clip: float) -> Tensor:
    """Return the fraction of rows whose ratio is more than `clip` away from 1."""
    return ((log_ratio.exp() - 1).abs() > clip).float().mean()


def squared_error(value: Tensor, target: Tensor) -> Tensor:
    """Compute half the mean squared error of V."""
    return 0.5 * (value - target).square().mean()


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Compute the Huber loss of each row: half the squared error, linear beyond `delta`.

    Its gradient is the error, clipped to `delta`, as in DQN (Mnih et al. 2015).
    """
    size = error.abs()
    return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Estimate KL(pi_old || pi) in nats from actions of pi_old: r - 1 - log r.

    Schulman 2020, http://joschu.net/blog/kl-approx.html, estimator k3.
    """
    return (log_ratio.exp() - 1 - log_ratio).mean()


def deterministic_policy_gradient(q: Tensor) -> Tensor:
    """Compute the loss that maximizes the values [N] of the policy's actions.

    Its gradient with respect to the policy's parameters is the deterministic policy gradient
    (Silver et al. 2014, https://proceedings.mlr.press/v32/silver14.html, equation 9).
    """
    return -q.mean()


def soft_value(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """Compute the soft value [...] of actions, from values [critics, ...] and log-densities [...].

    It is min Q - temperature * log pi, with the minimum over critics.  Haarnoja et al. 2018,
    https://arxiv.org/abs/1812.05905, equation 3 and section 4.2.
    """
    return q.min(0).values - temperature * log_prob


def temperature_loss(
    log_temperature: Tensor, log_prob: Tensor, target_entropy: Tensor | float
) -> Tensor:
    """Compute the loss that raises the temperature while the entropy is below target, else lowers.

    Only `log_temperature` gets a gradient.  Haarnoja et al. 2018, equation 18.
    """
    excess = -log_prob.detach().mean() - target_entropy
    return log_temperature.exp() * excess
