"""QNetwork: action values, or distributions of returns, from any model with two heads.

`make_noisy` gives any model noisy layers, linear layers whose random weights explore.

Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, with factorised noise (their equations 10
and 11).  Each linear layer gets learnt deviations and keeps its weights as means; the paper draws
the means uniformly instead.

There is no noise until `resample` draws some, so a loaded model plays with the means.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remotely_rl import trees
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.experience.batch import full
from remotely_rl.functions import categorical, q_learning
from remotely_rl.functions.distributions import ILLEGAL
from remotely_rl.networks.architecture import DEFAULT, Architecture
from remotely_rl.networks.factory import ModelSource, build_unmasked
from remotely_rl.networks.state import is_recurrent
from remotely_rl.trees import Tree


class QNetwork(nn.Module):
    """Maps observations to action values [N, A], and their maximum [N].

    To a player these are a policy, whose mode is the best action, and a value.  A learner uses
    `heads`.  With one atom and one quantile a head is a value.  With more atoms it is the logits of
    a distribution over returns from -bound to bound (`functions/categorical.py`), with more
    quantiles the quantiles (`functions/quantiles.py`).

    The model's policy outputs are a number for each action and atom or quantile.  Dueling
    distributions have one more row, the first: that of the state value.  Without distributions, the
    dueling state value is the model's value head.
    """

    atoms: Tensor

    def __init__(
        self,
        model: nn.Module,
        actions: int,
        *,
        is_dueling: bool,
        atoms: int,
        bound: float,
        quantiles: int,
        is_masked: bool,
    ):
        super().__init__()
        self.model = model
        self.actions = actions
        self.is_dueling = is_dueling
        self.is_masked = is_masked
        self.width = max(atoms, quantiles)  # of a head
        within = categorical.atoms_within(bound, atoms)
        self.register_buffer("atoms", within, persistent=False)

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        q = self.values(self.heads(obs), obs)
        return q, q.amax(-1)

    def heads(self, obs: Tree) -> Tensor:
        """Values [N, A], or logits [N, A, atoms], or quantiles [N, A, quantiles]."""
        policy, value = self.model(self._seen(obs))
        return self._combined(policy, value, obs)

    def unroll(self, obs: Tree, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heads [T, B, ...] of a recurrent model, and its state after T steps."""
        policy, value, state = self.model(self._seen(obs), state, begins)
        rows = trees.map_tree(lambda x: x.flatten(0, 1), obs) if self.is_masked else None
        heads = self._combined(policy.flatten(0, 1), value.flatten(), rows)
        return heads.view(*begins.shape, *heads.shape[1:]), state

    def _seen(self, obs: Tree) -> Tree:
        return obs[OBSERVATION] if self.is_masked else obs

    def _combined(self, policy: Tensor, value: Tensor, obs: Tree) -> Tensor:
        """Return the heads of a model's outputs [N, ...] for observations [N, ...]."""
        if not self.is_distributional:
            return q_learning.q_values(self.masked(full(policy), obs), value, self.is_dueling)
        rows = full(policy).view(policy.shape[0], -1, self.width)
        if not self.is_dueling:
            return rows
        one = torch.ones(rows[:, 1:, 0].shape, device=rows.device)
        legal = (self.masked(one, obs) > 0).unsqueeze(-1)
        return q_learning.dueling(rows[:, :1], rows[:, 1:], legal, dim=1)

    def values(self, heads: Tensor, obs: Tree) -> Tensor:
        """Return the action values [..., A] of the result of `heads` or `unroll`."""
        return self.masked(self.means(heads), obs) if self.is_distributional else heads

    def means(self, heads: Tensor) -> Tensor:
        """Return values [...] as they are, and distributions [..., width] as their means [...]."""
        if self.is_categorical:
            return categorical.expected(heads, self.atoms)
        return heads.mean(-1) if self.is_distributional else heads

    def masked(self, q: Tensor, obs: Tree) -> Tensor:
        """Replace the values of illegal actions, in [..., A], with ILLEGAL."""
        return torch.where(obs[ACTION_MASK], q, ILLEGAL) if self.is_masked else q

    @property
    def is_distributional(self) -> bool:
        return self.width > 1

    @property
    def is_categorical(self) -> bool:
        """Whether heads are probabilities of atoms."""
        return len(self.atoms) > 1


class RecurrentQNetwork(QNetwork):
    """The same of a recurrent model: maps sequences, as these do, to values [T, B, A]."""

    def initial_state(self, count: int) -> Tensor:
        return cast(Tensor, self.model.initial_state(count))  # type: ignore[operator]

    def forward(  # type: ignore[override]
        self, obs: Tree, state: Tensor, begins: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, state = self.unroll(obs, state, begins)
        q = self.values(heads, obs)
        return q, q.amax(-1), state


def build_q_network(
    source: ModelSource | None,
    spec: Tree,
    actions: int,
    *,
    is_dueling: bool = True,
    atoms: int = 1,
    bound: float = 0.0,
    quantiles: int = 1,
    architecture: Architecture = DEFAULT,
) -> QNetwork:
    """Make the Q-network for an environment's observations, around a model from `source` if given.

    Raises TrainingError as `networks.build` does.
    """
    is_masked = isinstance(spec, dict) and ACTION_MASK in spec
    width = max(atoms, quantiles)
    rows = actions + (is_dueling and width > 1)
    meaning = f"{actions} values of actions"
    if width > 1:
        meaning = f"{rows} rows of {width} {'atoms' if atoms > 1 else 'quantiles'}"
    seen = spec[OBSERVATION] if is_masked else spec
    model = build_unmasked(source, seen, rows * width, architecture, meaning)
    kind = RecurrentQNetwork if is_recurrent(model) else QNetwork
    return kind(
        model,
        actions,
        is_dueling=is_dueling,
        atoms=atoms,
        bound=bound,
        quantiles=quantiles,
        is_masked=is_masked,
    )


SIGMA = 0.5  # initial deviation of all weights of a unit together


class NoisyLinear(nn.Linear):
    """y = (mu + sigma * noise) x, elementwise, including the bias.

    The noise of a weight is the product of one number per input and one per output, so it is
    applied to these, without a matrix of noise.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, of: nn.Linear):
        """Take the weights of a linear layer as means."""
        super().__init__(of.in_features, of.out_features, bias=of.bias is not None)
        self.load_state_dict(of.state_dict())
        start = SIGMA / math.sqrt(of.in_features)
        self.sigma_weight = nn.Parameter(torch.full_like(of.weight, start))
        self.sigma_bias = nn.Parameter(torch.full((of.out_features,), start))
        self.register_buffer("noise_in", torch.zeros(of.in_features), persistent=False)
        self.register_buffer("noise_out", torch.zeros(of.out_features), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        noise = F.linear(x * self.noise_in, self.sigma_weight, self.sigma_bias) * self.noise_out
        return super().forward(x) + noise

    def resample(self, generator: torch.Generator) -> None:
        """Draw new noise on the CPU, so that a run draws the same on every device."""
        for noise in (self.noise_in, self.noise_out):
            drawn = torch.randn(noise.shape, generator=generator)
            noise.copy_(drawn.sign() * drawn.abs().sqrt())


def make_noisy(model: nn.Module) -> nn.Module:
    """Make all linear layers of a model noisy, except subclasses; return the model."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if type(part) is nn.Linear:  # a subclass may compute without its `forward`
                setattr(parent, name, NoisyLinear(part))
    return model


def resample(model: nn.Module, generator: torch.Generator) -> None:
    """Draw new noise for all noisy layers of a model."""
    for part in model.modules():
        if isinstance(part, NoisyLinear):
            part.resample(generator)
