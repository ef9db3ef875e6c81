"""Targets and advantages, as pure functions of `[T, B]` tensors.

Every function takes the same description of a trajectory:

    reward      [T, B]      of the step
    discount    [T, B]      gamma, or 0 where the step ended its episode (terminated)
    value       [T + 1, B]  V of each observation; the last row is the bootstrap
    valid       [T, B]      false for reset rows (autoreset), which are no steps; or None

and computes the same recursion backwards in time,

    correction_t = delta_t + discount_t * trace_t * correction_{t+1},   correction_T = 0

Delta and trace of an invalid row are 0, so its corrected value is V itself.  Episode ends need no
other rule: at a terminated row the discount stops the recursion; a truncated row bootstraps from V
of the final observation, because the correction of the reset row that follows is 0.

No gradient flows through any function: targets are constants.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Targets(NamedTuple):
    """Targets [T, B]: `value` for the value function, `advantage` for the policy gradient."""

    value: Tensor
    advantage: Tensor


@torch.no_grad()
def v_trace(
    log_rho: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    *,
    valid: Tensor | None = None,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    rho_bar_pg: float | None = 1.0,
    gae_lambda: float = 1.0,
) -> Targets:
    """Compute V-trace: targets for the target policy pi from steps of a behaviour policy mu.

    `log_rho` [T, B] is log pi(a_t) - log mu(a_t).  In the result, `value` is v_s of equation 1,
    and `advantage` is rho_s (r_s + gamma v_{s+1} - V_s) of section 4.2, where rho has its own clip,
    `rho_bar_pg`; None leaves that rho out, for losses that already contain the ratio.
    `gae_lambda` is the lambda of remark 2; if pi = mu the result is GAE(lambda).  `rho_bar`
    determines the policy whose values are learnt, `c_bar` only the speed; rho_bar >= c_bar is
    required.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561.
    """
    if rho_bar < c_bar:
        raise ValueError(f"rho_bar ({rho_bar}) must be at least c_bar ({c_bar})")
    ratio = log_rho.exp()
    rho = ratio.clamp(max=rho_bar)
    trace = gae_lambda * ratio.clamp(max=c_bar)
    rho_pg = torch.ones_like(ratio) if rho_bar_pg is None else ratio.clamp(max=rho_bar_pg)
    if valid is not None:
        rho, trace, rho_pg = rho * valid, trace * valid, rho_pg * valid

    delta = rho * (reward + discount * value[1:] - value[:-1])
    corrected = value + _backwards(delta, discount * trace)
    # Weighted by lambda, which makes it GAE(lambda) on-policy.
    onward = gae_lambda * corrected[1:] + (1 - gae_lambda) * value[1:]
    advantage = rho_pg * (reward + discount * onward - value[:-1])
    return Targets(corrected[:-1], advantage)


@torch.no_grad()
def gae(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    *,
    valid: Tensor | None = None,
    gae_lambda: float = 0.95,
) -> Targets:
    """Compute generalized advantage estimates, for on-policy steps.

    `gae_lambda` 0 gives one-step temporal differences, 1 gives n-step returns up to the end of
    the trajectory.  The value target is the advantage plus V, which is the lambda return

        G_t = r_t + discount_t ((1 - lambda) V_{t+1} + lambda G_{t+1}),   G_T = V_T.

    With the best action's value as V that is Peng's Q(lambda), for steps of any policy.

    Schulman et al. 2016, https://arxiv.org/abs/1506.02438, equation 16.
    """
    delta = reward + discount * value[1:] - value[:-1]
    trace = torch.full_like(reward, gae_lambda)
    if valid is not None:
        delta, trace = delta * valid, trace * valid
    advantage = _backwards(delta, discount * trace)[:-1]
    return Targets(value[:-1] + advantage, advantage)


def _backwards(delta: Tensor, weight: Tensor) -> Tensor:
    """Compute correction_t = delta_t + weight_t * correction_{t+1}: [T + 1, B], last row 0."""
    correction = torch.zeros_like(delta[:1]).repeat(len(delta) + 1, *[1] * (delta.dim() - 1))
    for t in range(len(delta) - 1, -1, -1):
        correction[t] = delta[t] + weight[t] * correction[t + 1]
    return correction
