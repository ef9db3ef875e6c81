"""Distributions over actions, as pure functions of a policy network's outputs.

Arguments are [..., n] and results [...], or [..., k] for actions that are vectors.

Categorical: n logits.

Diagonal Gaussian: k means, then k log standard deviations, relative to INITIAL_LOG_STD and clamped.

Squashed Gaussian: the same outputs; an action is the tanh of a Gaussian sample.

Deterministic: k outputs, whose tanh is the action.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

# The log standard deviation where the network's output is 0.  With 0, a third of all actions on
# [-1, 1] are clipped, and HalfCheetah's return after a million steps was 1,200 to 1,600; with -1 it
# was 2,900 to 5,000.  With -2, two seeds of three had not learnt Pendulum after six minutes.
INITIAL_LOG_STD = -1.0
# The logit of an illegal action.  Its probability is exactly 0; with minus infinity the entropy
# would be NaN.
ILLEGAL = -1e9
# Beyond these, gradients vanish or overflow.
MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0

# A generator; or several, each for an equal part of the rows; or None for torch's global one.
Randoms = torch.Generator | Sequence[torch.Generator] | None


def filled(
    into: Tensor, fill: Callable[[Tensor, torch.Generator | None], object], randoms: Randoms
) -> Tensor:
    """Fill [B, ...] with random numbers, each generator filling an equal part of the rows."""
    if not isinstance(randoms, Sequence):
        fill(into, randoms)
        return into
    for part, random in zip(into.tensor_split(len(randoms)), randoms, strict=True):
        fill(part, random)
    return into


def is_legal(logits: Tensor) -> Tensor:
    """Return which actions may be taken."""
    return logits > ILLEGAL / 2


def categorical_sample(logits: Tensor, randoms: Randoms = None) -> Tensor:
    """Draw an action from each policy."""
    # The Gumbel-max trick: minus the log of an exponential variable is a Gumbel variable.
    clocks = filled(
        torch.empty_like(logits), lambda x, random: x.exponential_(generator=random), randoms
    )
    return (logits - clocks.log()).argmax(-1)


def categorical_mode(logits: Tensor) -> Tensor:
    """Return the most probable action of each policy."""
    return logits.argmax(-1)


def categorical_log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Return the log-probability of each action."""
    return torch.log_softmax(logits, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)


def categorical_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each policy, in nats."""
    log_prob = torch.log_softmax(logits, -1)
    return -(log_prob.exp() * log_prob).sum(-1)


def gaussian_start(count: int, log_std: float) -> Tensor:
    """Return the output [2 * count] for means of 0 and this log standard deviation."""
    return torch.cat([torch.zeros(count), torch.full((count,), log_std - INITIAL_LOG_STD)])


def gaussian_parameters(policy: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and log standard deviations [..., k] of policies [..., 2k].

    They are float64 if the policies are, else float32, also for bfloat16 from a GPU.
    """
    mean, log_std = policy.to(torch.promote_types(policy.dtype, torch.float32)).chunk(2, -1)
    log_std = log_std + INITIAL_LOG_STD
    return mean, log_std.clamp(MIN_LOG_STD, MAX_LOG_STD)


def gaussian_sample(policy: Tensor, randoms: Randoms = None) -> Tensor:
    """Draw an action [..., k] from each policy."""
    mean, log_std = gaussian_parameters(policy)
    return mean + log_std.exp() * standard_normal(mean, randoms)


def standard_normal(like: Tensor, randoms: Randoms) -> Tensor:
    """Draw normal numbers on the generators' device; return them like a tensor, on its device."""
    first = randoms[0] if isinstance(randoms, Sequence) else randoms
    noise = filled(
        torch.empty(like.shape, device=first.device if first else like.device, dtype=like.dtype),
        lambda x, random: x.normal_(generator=random),
        randoms,
    )
    return noise.to(like.device)


def gaussian_mode(policy: Tensor) -> Tensor:
    """Return the mean [..., k] of each policy."""
    return gaussian_parameters(policy)[0]


def gaussian_log_prob(policy: Tensor, action: Tensor) -> Tensor:
    """Return the log-density of each action [..., k]."""
    mean, log_std = gaussian_parameters(policy)
    z = (action - mean) * torch.exp(-log_std)
    return (-0.5 * z.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def gaussian_entropy(policy: Tensor) -> Tensor:
    """Return the differential entropy of each policy, in nats."""
    _, log_std = gaussian_parameters(policy)
    return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def squashed_sample(
    policy: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw an action [..., k] in (-1, 1) from each policy; return it and its log-density.

    Both are differentiable with respect to the policy (reparameterization).
    """
    mean, _ = policy.chunk(2, -1)
    noise = standard_normal(mean.float() if mean.dtype == torch.bfloat16 else mean, generator)
    action, log_prob = _Squashed.apply(policy, noise)  # type: ignore[no-untyped-call]
    return action, log_prob


def squashed_mode(policy: Tensor) -> Tensor:
    """Return the tanh of the mean [..., k] of each policy."""
    return torch.tanh(gaussian_mode(policy))


def squashed_log_prob(policy: Tensor, unsquashed: Tensor) -> Tensor:
    """Return the log-density of each action tanh(u), from u [..., k].

    Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905, equation 26.  It takes u, not the
    action, which rounds to 1 at u = 9.  For the same reason, log(1 - tanh(u)^2) is computed as
    2 (log 2 - u - softplus(-2 u)).
    """
    mean, log_std = gaussian_parameters(policy)
    noise = (unsquashed - mean) * torch.exp(-log_std)
    return _squashed_log_prob(noise, log_std, unsquashed)


def _squashed_log_prob(noise: Tensor, log_std: Tensor, unsquashed: Tensor) -> Tensor:
    """Return the log-density of tanh(u), where u = mean + noise * e^log_std."""
    half_slope = math.log(2) - unsquashed - softplus(-2 * unsquashed)
    negative = torch.addcmul(torch.add(log_std, half_slope, alpha=2), noise, noise, value=0.5)
    return -0.5 * math.log(2 * math.pi) * noise.shape[-1] - negative.sum(-1)


class _Squashed(torch.autograd.Function):
    """Actions tanh(u) and their log-densities, of policies and the noise in u.

    It is a third of the operations that autograd would record, each of which costs more than its
    arithmetic.  With a = tanh(u), da/du = 1 - a^2, and the log-density's slope in u is 2 a, since
    the noise is given.
    """

    @staticmethod
    def forward(ctx: Any, policy: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = gaussian_parameters(policy)
        apart = log_std.exp().mul_(noise)
        unsquashed = mean + apart
        action = torch.tanh(unsquashed)
        ctx.save_for_backward(policy, action, apart)
        return action, _squashed_log_prob(noise, log_std, unsquashed)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        of_action, of_log_prob = slopes[0], slopes[1].unsqueeze(-1)
        policy, action, apart = ctx.saved_tensors
        slope = of_action * (1 - action * action) + of_log_prob * (2 * action)
        log_std = policy.chunk(2, -1)[1] + INITIAL_LOG_STD
        is_free = (log_std >= MIN_LOG_STD) & (log_std <= MAX_LOG_STD)  # not clamped
        return torch.cat([slope, (slope * apart - of_log_prob) * is_free], -1).to(
            policy.dtype
        ), None


def perturbed(
    action: Tensor, std: float, randoms: Randoms = None, noise_clip: float = math.inf
) -> Tensor:
    """Add Gaussian noise, clipped to `noise_clip`, to actions [..., k]; clamp them to [-1, 1].

    Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, algorithm 1: target policy smoothing
    (section 5.3) with a clip, exploration noise without.
    """
    noise = std * standard_normal(action, randoms)
    return (action + noise.clamp(-noise_clip, noise_clip)).clamp(-1, 1)
