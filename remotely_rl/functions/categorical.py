"""Distributions of returns over fixed atoms (C51), as pure functions.

Bellemare, Dabney and Munos 2017, https://arxiv.org/abs/1707.06887.  The atoms are equally spaced
from -bound to bound; a network returns a logit for each.
"""

import torch
from torch import Tensor


def atoms_within(bound: float, count: int) -> Tensor:
    """The returns [count] that the atoms stand for."""
    return torch.linspace(-bound, bound, count)


def expected(logits: Tensor, atoms: Tensor) -> Tensor:
    """The mean return [...] of distributions [..., atoms]."""
    return (logits.softmax(-1) * atoms).sum(-1)


def project(probability: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """The distribution of reward + discount * Z over the atoms, for Z of `probability` [N, atoms].

    What is beyond the atoms goes to the outermost; what is between two is split in proportion
    (algorithm 1).  Written as the sum over j of p_j max(0, 1 - |Tz_j - z_i| / dz): a return that is
    exactly an atom needs no case of its own.
    """
    moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms
    low, high = float(atoms[0]), float(atoms[-1])
    last = len(atoms) - 1
    place = ((moved.clamp(low, high) - low) * (last / (high - low))).clamp_(max=last)  # rounded up
    below = place.floor().clamp_(max=last - 1)
    upper = (place - below) * probability
    projected = torch.zeros_like(probability)
    projected.scatter_add_(-1, below.long(), probability - upper)
    return projected.scatter_add_(-1, below.long() + 1, upper)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum of target * log p [N], of distributions [N, atoms].

    It is the KL divergence from the target, but for the target's entropy, which no gradient sees.
    """
    return (-target * logits.log_softmax(-1)).sum(-1)


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """KL(target || p) in nats [N]: the cross-entropy less the target's entropy, at least 0."""
    entropy: Tensor = torch.special.entr(target).sum(-1)
    return (cross_entropy(logits, target) - entropy).clamp(min=0)
