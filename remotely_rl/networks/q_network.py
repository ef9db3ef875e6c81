"""QNetwork: values of actions, or the distributions of returns, from any model of two heads."""

from typing import cast

import torch
from torch import Tensor, nn

from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.experience.batch import full
from remotely_rl.functions import categorical, q_learning
from remotely_rl.functions.distributions import ILLEGAL
from remotely_rl.networks.factory import ModelSource, build_unmasked
from remotely_rl.trees import Tree


class QNetwork(nn.Module):
    """Maps observations to the values of actions [N, A], and the best of them [N].

    To a player it is a policy and a value: the most likely action is the best one.  A learner
    wants `heads`.  With one atom a head is a value.  With more it is the logits of a distribution
    over returns from -bound to bound (`functions/categorical.py`).

    The model's policy has a number for each action and atom, with dueling distributions one row of
    atoms more, before the others: the value's.  A dueling value without a distribution is the
    model's own value head.
    """

    atoms: Tensor

    def __init__(
        self, model: nn.Module, actions: int, *, is_dueling: bool, atoms: int, bound: float,
        is_masked: bool,
    ):  # fmt: skip
        super().__init__()
        self.model = model
        self.actions = actions
        self.is_dueling = is_dueling
        self.is_masked = is_masked
        within = categorical.atoms_within(bound, atoms)
        self.register_buffer("atoms", within, persistent=False)

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        q = self.values(self.heads(obs), obs)
        return q, q.amax(-1)

    def heads(self, obs: Tree) -> Tensor:
        """Values [N, A], or logits [N, A, atoms]."""
        policy, value = self.model(obs[OBSERVATION] if self.is_masked else obs)
        if not self.is_distributional:
            return q_learning.q_values(self.masked(full(policy), obs), value, self.is_dueling)
        rows = full(cast(Tensor, policy)).view(len(policy), -1, len(self.atoms))
        if not self.is_dueling:
            return rows
        one = torch.ones(rows[:, 1:, 0].shape, device=rows.device)
        legal = (self.masked(one, obs) > 0).unsqueeze(-1)
        return q_learning.dueling(rows[:, :1], rows[:, 1:], legal, dim=1)

    def values(self, heads: Tensor, obs: Tree) -> Tensor:
        """The values [N, A] that `heads` returned, or the means of the distributions."""
        if not self.is_distributional:
            return heads
        return self.masked(categorical.expected(heads, self.atoms), obs)

    def masked(self, q: Tensor, obs: Tree) -> Tensor:
        """Values [N, A] with ILLEGAL for the actions that are illegal."""
        return torch.where(obs[ACTION_MASK], q, ILLEGAL) if self.is_masked else q

    @property
    def is_distributional(self) -> bool:
        return len(self.atoms) > 1


def build_q_network(
    source: ModelSource | None,
    spec: Tree,
    actions: int,
    *,
    is_dueling: bool = True,
    atoms: int = 1,
    bound: float = 0.0,
) -> QNetwork:
    """Make the Q-network for an environment's observations, of a model of yours if there is one.

    Raises TrainingError as `networks.build` does.
    """
    is_masked = isinstance(spec, dict) and ACTION_MASK in spec
    rows = actions + (is_dueling and atoms > 1)
    meaning = f"{rows} rows of {atoms} atoms" if atoms > 1 else f"{actions} values of actions"
    seen = spec[OBSERVATION] if is_masked else spec
    model = build_unmasked(source, seen, rows * atoms, outputs_are=meaning)
    return QNetwork(
        model, actions, is_dueling=is_dueling, atoms=atoms, bound=bound, is_masked=is_masked
    )
