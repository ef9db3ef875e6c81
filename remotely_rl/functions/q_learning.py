"""Action values: what they are made of, what they bootstrap from, and how they are explored.

Values of actions are [..., A].  An illegal action has the value ILLEGAL, so that it is never the
best one.
"""

import torch
from torch import Tensor

from remotely_rl.functions.distributions import ILLEGAL, categorical_sample, is_legal


def dueling(value: Tensor, advantage: Tensor, legal: Tensor, dim: int = -1) -> Tensor:
    """V + A - mean A, where the mean is over the legal actions, which lie along `dim`.

    The three broadcast.  Where nothing is legal the mean is 0: an observation from which no value
    is taken may have any mask.  Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9.
    """
    mean = (advantage * legal).sum(dim, keepdim=True) / legal.sum(dim, keepdim=True).clamp(min=1)
    return value + advantage - mean


def q_values(policy: Tensor, value: Tensor, is_dueling: bool) -> Tensor:
    """Values of actions [..., A] from a model's two heads, [..., A] and [...].

    Illegal actions are ILLEGAL in `policy` already.
    """
    policy, value = policy.float(), value.float()
    if not is_dueling:
        return policy
    legal = is_legal(policy)
    return torch.where(legal, dueling(value.unsqueeze(-1), policy, legal), ILLEGAL)


def taken(values: Tensor, action: Tensor) -> Tensor:
    """What `values` [N, A, ...] have for the actions [N] that were taken: [N, ...]."""
    return values[torch.arange(len(action), device=action.device), action]


def n_step_target(reward: Tensor, discount: Tensor, bootstrap: Tensor) -> Tensor:
    """R + discount * bootstrap, all [N].

    R is the sum of n discounted rewards; the discount is gamma^n, or 0 where the episode ended.
    """
    return reward + discount * bootstrap


def epsilon_greedy(q: Tensor, epsilon: Tensor, generator: torch.Generator) -> Tensor:
    """The best of actions [B, A], or with probability epsilon [B] a random one that is legal."""
    at_random = torch.rand(len(q), generator=generator) < epsilon
    legal = is_legal(q)
    if legal.all():
        any_of = torch.randint(q.shape[-1], (len(q),), generator=generator)
    else:
        any_of = categorical_sample(torch.where(legal, 0.0, ILLEGAL), generator)
    return torch.where(at_random, any_of, q.argmax(-1))


def epsilon(final: Tensor, env_steps: int, explore_steps: float) -> Tensor:
    """Epsilons that fall from 1 to `final` [B] over `explore_steps`, after `env_steps`."""
    done = min(1.0, max(0, env_steps) / explore_steps)
    return 1.0 + done * (final - 1.0)


def spread(epsilon: float, exponent: float, count: int) -> Tensor:
    """Epsilons of `count` environments, from `epsilon` down to `epsilon` ** (1 + `exponent`).

    Horgan et al. 2018 (Ape-X), https://arxiv.org/abs/1803.00933, section 4: 0.4 and 7.
    """
    place = torch.arange(count) / max(1, count - 1)
    return torch.as_tensor(epsilon, dtype=torch.float32) ** (1 + exponent * place)
