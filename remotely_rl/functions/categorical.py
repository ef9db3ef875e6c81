"""Distributions of returns over fixed atoms (C51), as pure functions.

Bellemare, Dabney and Munos 2017, https://arxiv.org/abs/1707.06887.  The atoms are equally spaced
from -bound to bound; a network returns a logit for each.
"""

import torch
from torch import Tensor


def atoms_within(bound: float, count: int) -> Tensor:
    """Return the atoms [count]."""
    return torch.linspace(-bound, bound, count)


def expected(logits: Tensor, atoms: Tensor) -> Tensor:
    """Return the means [...] of distributions [..., atoms]."""
    return (logits.softmax(-1) * atoms).sum(-1)


def project(probability: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """Project the distribution of reward + discount * Z onto the atoms; Z has `probability`.

    Probabilities are [N, atoms].  Returns beyond the atoms are clipped to the outermost; the
    probability of a return between two atoms is split in proportion (algorithm 1).  Written as the
    sum over j of p_j max(0, 1 - |Tz_j - z_i| / dz), which needs no special case for a return that
    is exactly an atom.
    """
    moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms
    low, high = float(atoms[0]), float(atoms[-1])
    last = len(atoms) - 1
    # Rounding may exceed `last`.
    place = ((moved.clamp(low, high) - low) * (last / (high - low))).clamp_(max=last)
    below = place.floor().clamp_(max=last - 1)
    upper = (place - below) * probability
    projected = torch.zeros_like(probability)
    projected.scatter_add_(-1, below.long(), probability - upper)
    return projected.scatter_add_(-1, below.long() + 1, upper)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Compute -sum(target * log p) [N], for distributions [N, atoms].

    It differs from the KL divergence by the target's entropy, which has no gradient.
    """
    return (-target * logits.log_softmax(-1)).sum(-1)


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Compute KL(target || p) in nats [N]: cross-entropy minus the target's entropy, at least 0."""
    entropy: Tensor = torch.special.entr(target).sum(-1)
    return (cross_entropy(logits, target) - entropy).clamp(min=0)
