"""PolicyAndCritics, the networks of TD3; with a temperature, SoftActorCritic, those of SAC.

Policy and critics each see an observation through an encoder of their own (`encoders.py`); the
critics share theirs.  Small networks spend most of their time on calls of torch, not on arithmetic.
So the two critics are one stack of weights, which takes as many calls as one critic: a third less
time at 64 units, and as much at 256.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from remotely_rl.networks.architecture import HIDDEN, Architecture
from remotely_rl.networks.encoders import encoder_of
from remotely_rl.networks.layers import connected_layers, in_float32, orthogonal_init
from remotely_rl.trees import Tree

CRITICS = 2  # whose least value is believed: the greatest is where one is the most mistaken


class PolicyAndCritics(nn.Module):
    """Maps observations to `(policy, value)` as every model does; the value is the policy's own.

    `policy` is any such model.
    """

    def __init__(self, policy: nn.Module, critics: "Critics"):
        super().__init__()
        self.policy = policy
        self.critics = critics

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor], self.policy(obs))


class SoftActorCritic(PolicyAndCritics):
    """The same with a temperature, which is learnt too."""

    def __init__(self, policy: nn.Module, critics: "Critics", temperature: float):
        super().__init__(policy, critics)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))


class PolicyNetwork(nn.Module):
    """An encoder, layers and a head.  Its value is 0: the critics have the values."""

    def __init__(self, spec: Tree, outputs: int, architecture: Architecture):
        super().__init__()
        hidden, activation = _layers_of(architecture)
        self.encoder = encoder_of(spec, architecture)
        self.body = nn.Sequential(*connected_layers(self.encoder.width, hidden, activation))
        self.policy = nn.Linear((self.encoder.width, *hidden)[-1], outputs)
        orthogonal_init(self.policy, 0.01)  # starts at the middle of the bounds

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        policy = in_float32(self.policy, self.body(self.encoder(obs)))
        return policy, torch.zeros_like(policy[:, 0])


class Critics(nn.Module):
    """Values [CRITICS, N] of actions [N, width] on observations [N, ...], by each critic."""

    def __init__(self, spec: Tree, width: int, architecture: Architecture):
        super().__init__()
        hidden, activation = _layers_of(architecture)
        self.encoder = encoder_of(spec, architecture)
        inputs = (self.encoder.width + width, *hidden)
        layers = [
            layer
            for pair in itertools.pairwise(inputs)
            for layer in (StackedLinear(CRITICS, *pair), activation())
        ]
        self.layers = nn.Sequential(*layers, StackedLinear(CRITICS, inputs[-1], 1))

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        seen = torch.cat([self.encoder(obs), action], -1)
        return cast(Tensor, self.layers(seen.expand(CRITICS, -1, -1))).squeeze(-1).float()


def _layers_of(architecture: Architecture) -> tuple[tuple[int, ...], type[nn.Module]]:
    hidden = HIDDEN if architecture.hidden is None else architecture.hidden
    return hidden, architecture.activation_or(nn.ReLU)


class StackedLinear(nn.Module):
    """A linear layer for each member of a stack: [members, N, inputs] -> [members, N, outputs]."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # from which torch draws those of a single layer
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


@contextmanager
def frozen(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Within it, what is computed has no gradient by these parameters, only by its inputs."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
