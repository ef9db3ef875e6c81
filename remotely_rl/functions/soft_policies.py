"""Soft policies: the two kinds of random policies that SAC learns, as functions of their outputs.

    SQUASHED      for a Box: the tanh of a Gaussian sample; expectations are those of one sample
    CATEGORICAL   for Discrete(n): logits; expectations are exact, sums over all actions

What SAC computes of a policy is an expectation over its actions, of their values and of their
log-probabilities.  An `Outlook` holds what that takes, and is all in which the kinds differ:

    outlook = kind.outlook(policy(obs), generator)
    q = critics(obs, outlook.action)                            # of the actions drawn, or of all
    value = outlook.mean(q - temperature * outlook.log_prob)    # [N]

Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; for Discrete(n) Christodoulou 2019,
https://arxiv.org/abs/1910.07207, whose equation numbers are given.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from remotely_rl.functions.distributions import (
    ILLEGAL,
    categorical_mode,
    categorical_sample,
    gaussian_start,
    is_legal,
    squashed_mode,
    squashed_sample,
)

# The default target entropy of n legal actions, as a fraction of the largest, log n.
ENTROPY_OF_DISCRETE = 0.98


class Outlook(NamedTuple):
    """Actions of N policies: one drawn from each, or all that each may take."""

    action: Tensor | None  # [N, k], those drawn; None: all
    log_prob: Tensor  # [N] of those drawn, or [N, A] of all

    def mean(self, of_actions: Tensor) -> Tensor:
        """Return the mean [N] over each policy of a number of the actions, shaped as `log_prob`."""
        if self.action is not None:
            return of_actions
        return (self.log_prob.exp() * of_actions).sum(-1)

    @property
    def usual_entropy(self) -> Tensor:
        """The default target of the policies' entropy in nats, on average.

        It is minus the number of coordinates, or a fraction of that of a uniform choice among the
        legal actions: a mask would make a number for all unreachable.
        """
        if self.action is not None:
            return torch.tensor(-float(self.action.shape[-1]))
        legal = is_legal(self.log_prob).sum(-1)
        return ENTROPY_OF_DISCRETE * legal.clamp(min=1).log().mean()


class SoftPolicy(Protocol):
    """A kind of policies; `policy` are outputs [N, outputs]."""

    def outlook(self, policy: Tensor, generator: torch.Generator) -> Outlook:
        """Return the actions for an expectation; it is differentiable."""
        ...

    def draw(self, policy: Tensor, generator: torch.Generator) -> Tensor:
        """Draw an action from each policy."""
        ...

    def draw_uniformly(self, policy: Tensor, generator: torch.Generator) -> Tensor:
        """Draw actions that depend on the policy by what is legal only."""
        ...

    def mode(self, policy: Tensor) -> Tensor:
        """Return the most likely action of each policy."""
        ...

    def start(self, outputs: int, log_std: float) -> Tensor:
        """Return the outputs at the start; a Gaussian has this log standard deviation."""
        ...


class Squashed:
    """Outputs are means, then log standard deviations; actions are in (-1, 1)."""

    def outlook(self, policy: Tensor, generator: torch.Generator) -> Outlook:
        return Outlook(*squashed_sample(policy, generator))

    def draw(self, policy: Tensor, generator: torch.Generator) -> Tensor:
        return squashed_sample(policy, generator)[0]

    def draw_uniformly(self, policy: Tensor, generator: torch.Generator) -> Tensor:
        rows, outputs = policy.shape
        return torch.empty(rows, outputs // 2).uniform_(-1, 1, generator=generator)

    def mode(self, policy: Tensor) -> Tensor:
        return squashed_mode(policy)

    def start(self, outputs: int, log_std: float) -> Tensor:
        return gaussian_start(outputs // 2, log_std)


class Categorical:
    """Outputs are logits; those of illegal actions are ILLEGAL, so their probabilities are 0."""

    def outlook(self, policy: Tensor, generator: torch.Generator) -> Outlook:
        """Draws nothing: equations 10 to 12 are over all actions."""
        return Outlook(None, torch.log_softmax(policy, -1))

    def draw(self, policy: Tensor, generator: torch.Generator) -> Tensor:
        return categorical_sample(policy, generator)

    def draw_uniformly(self, policy: Tensor, generator: torch.Generator) -> Tensor:
        return categorical_sample(torch.where(is_legal(policy), 0.0, ILLEGAL), generator)

    def mode(self, policy: Tensor) -> Tensor:
        return categorical_mode(policy)

    def start(self, outputs: int, log_std: float) -> Tensor:
        return torch.zeros(outputs)


SQUASHED, CATEGORICAL = Squashed(), Categorical()
