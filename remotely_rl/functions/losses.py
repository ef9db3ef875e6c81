"""Losses: pure functions of rows, all of them means but for `huber`, whose rows may be weighted.

The mean makes the size of a step independent of the number of rows.  IMPALA's paper sums instead,
so its learning rate and its bound of the gradient's norm do not carry over.  The caller leaves out
rows that are not experience; nothing is masked here.
"""

import torch
from torch import Tensor


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """The policy gradient: raises each action's log-probability in proportion to its advantage.

    Williams 1992 (REINFORCE); with V-trace's advantages it is section 4.2 of Espeholt et al. 2018.
    """
    return -(log_prob * advantage).mean()


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """PPO's objective, negated: the policy gradient, up to `clip` away from the old policy.

    `log_ratio` is log pi - log pi_old.  At ratio 1 the gradient is the policy gradient.  It is
    zero for rows that are past the clip on the side that their advantage favours.
    Schulman et al. 2017, https://arxiv.org/abs/1707.06347, equation 7.
    """
    ratio = log_ratio.exp()
    unclipped = ratio * advantage
    clipped = ratio.clamp(1 - clip, 1 + clip) * advantage
    return -torch.minimum(unclipped, clipped).mean()


def clip_fraction(log_ratio: Tensor, clip: float) -> Tensor:
    """The share of rows whose ratio is more than `clip` away from 1."""
    return ((log_ratio.exp() - 1).abs() > clip).float().mean()


def squared_error(value: Tensor, target: Tensor) -> Tensor:
    """Half the squared error of V."""
    return 0.5 * (value - target).square().mean()


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Half the squared error of each row up to `delta`, and beyond it as the absolute error grows.

    Its gradient is the error, clipped to `delta`: that is what DQN clips (Mnih et al. 2015).
    """
    size = error.abs()
    return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """KL(pi_old || pi) in nats, estimated from actions of pi_old: r - 1 - log r.

    Schulman 2020, http://joschu.net/blog/kl-approx.html, estimator k3.
    """
    return (log_ratio.exp() - 1 - log_ratio).mean()


def deterministic_policy_gradient(q: Tensor) -> Tensor:
    """Raises the values [N] of the policy's actions.

    Its gradient by the policy's parameters is the deterministic policy gradient (Silver et al.
    2014, https://proceedings.mlr.press/v32/silver14.html, equation 9).
    """
    return -q.mean()


def soft_value(q: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """The soft value [N] of actions with log-densities [N], from their values [critics, N].

    min Q - temperature log pi: the least of the critics' values, and the entropy's part.  Haarnoja
    et al. 2018, https://arxiv.org/abs/1812.05905, equation 3 and section 4.2.
    """
    return q.min(0).values - temperature * log_prob


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Raises the temperature while the policy's entropy is below its target, and lowers it above.

    Only `log_temperature` gets a gradient.  Haarnoja et al. 2018, equation 18.
    """
    excess = -log_prob.detach().mean() - target_entropy
    return log_temperature.exp() * excess
