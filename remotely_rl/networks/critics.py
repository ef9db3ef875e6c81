"""The networks of soft actor-critic: a policy without a value function, and two critics.

Both see an observation through an encoder of their own (`encoders.py`).  The critics share theirs.
Small networks spend most of their time on calls of torch, not on arithmetic: as one stack of
weights, two critics take as many calls as one.
"""

import math

import torch
from torch import Tensor, nn

from remotely_rl.networks.encoders import encoder_of
from remotely_rl.networks.layers import in_float32, orthogonal_init
from remotely_rl.trees import Tree

CRITICS = 2  # whose least value is believed, because each overestimates where it is least sure


def relu_layers(inputs: int, units: int) -> nn.Sequential:
    """Two layers with ReLU."""
    return nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU())


class SoftPolicy(nn.Module):
    """Two layers between an encoder and the policy.  Its value is 0: the critics have the values."""

    def __init__(self, spec: Tree, outputs: int, units: int):
        super().__init__()
        self.encoder = encoder_of(spec)
        self.body = relu_layers(self.encoder.width, units)
        self.policy = nn.Linear(units, outputs)
        orthogonal_init(self.policy, 0.01)

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        policy = in_float32(self.policy, self.body(self.encoder(obs)))
        return policy, policy.new_zeros(len(policy))


class StackedLinear(nn.Module):
    """A linear layer for each member of a stack: [members, N, inputs] -> [members, N, outputs]."""

    def __init__(self, members: int, inputs: int, outputs: int):
        super().__init__()
        # As torch draws those of a single layer.
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Critics(nn.Module):
    """Values of actions [N, width] on observations [N, ...], by each critic: [CRITICS, N]."""

    def __init__(self, spec: Tree, width: int, units: int):
        super().__init__()
        self.encoder = encoder_of(spec)
        self.layers = nn.Sequential(
            StackedLinear(CRITICS, self.encoder.width + width, units),
            nn.ReLU(),
            StackedLinear(CRITICS, units, units),
            nn.ReLU(),
            StackedLinear(CRITICS, units, 1),
        )

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        seen = torch.cat([self.encoder(obs), action], -1)
        return self.layers(seen.expand(CRITICS, -1, -1)).squeeze(-1).float()
