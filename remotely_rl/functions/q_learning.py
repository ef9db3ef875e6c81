"""Action values: dueling heads, n-step targets, epsilon-greedy exploration.

Action values are [..., A].  An illegal action has the value ILLEGAL, so it is never the best one.
"""

import torch
from torch import Tensor

from remotely_rl.functions.distributions import ILLEGAL, categorical_sample, is_legal


def dueling(value: Tensor, advantage: Tensor, legal: Tensor, dim: int = -1) -> Tensor:
    """Compute V + A - mean A, where the mean is over the legal actions, along `dim`.

    The three broadcast.  Where no action is legal the mean is 0: an observation whose values are
    never used may have any mask.  Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9.
    """
    mean = (advantage * legal).sum(dim, keepdim=True) / legal.sum(dim, keepdim=True).clamp(min=1)
    return value + advantage - mean


def q_values(policy: Tensor, value: Tensor, is_dueling: bool) -> Tensor:
    """Return action values [..., A] from a model's two heads, [..., A] and [...].

    Illegal actions are already ILLEGAL in `policy`.
    """
    policy, value = policy.float(), value.float()
    if not is_dueling:
        return policy
    legal = is_legal(policy)
    return torch.where(legal, dueling(value.unsqueeze(-1), policy, legal), ILLEGAL)


def described(is_dueling: bool, each: str = "action values") -> str:
    """Return the meaning of a model's outputs in words."""
    return f"dueling {each}" if is_dueling else each


def taken(values: Tensor, action: Tensor) -> Tensor:
    """Return the values [N, ...] of the actions taken [N], from `values` [N, A, ...]."""
    return values[torch.arange(len(action), device=action.device), action]


def n_step_target(reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
    """Compute reward + discount * bootstrap, all [N].

    `reward` is the sum of n discounted rewards, `discount` gamma^n, or 0 where the episode ended.
    """
    return reward + discount * bootstrap


def epsilon_greedy(q: Tensor, epsilon: Tensor | float, generator: torch.Generator) -> Tensor:
    """Return the best action [B] by values [B, A], or with probability epsilon a random legal one.

    `epsilon` is [B], or one for all.
    """
    explores = torch.rand(len(q), generator=generator) < epsilon
    legal = is_legal(q)
    if legal.all():
        random = torch.randint(q.shape[-1], (len(q),), generator=generator)
    else:
        random = categorical_sample(torch.where(legal, 0.0, ILLEGAL), generator)
    return torch.where(explores, random, q.argmax(-1))


def epsilon(final: Tensor, env_steps: int, explore_steps: float) -> Tensor:
    """Return epsilons [B] after `env_steps`; they fall from 1 to `final` over `explore_steps`."""
    done = min(1.0, max(0, env_steps) / explore_steps)
    return 1.0 + done * (final - 1.0)


def spread(epsilon: float, exponent: float, count: int) -> Tensor:
    """Return the epsilons of `count` environments, from epsilon down to epsilon ** (1 + exponent).

    Horgan et al. 2018 (Ape-X), https://arxiv.org/abs/1803.00933, section 4, with 0.4 and 7.
    """
    place = torch.arange(count) / max(1, count - 1)
    return torch.as_tensor(epsilon, dtype=torch.float32) ** (1 + exponent * place)
