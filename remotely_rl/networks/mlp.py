"""MLP, the network for vectors, and for observations that an encoder maps to a vector."""

import math

from torch import Tensor, nn

from remotely_rl.networks.architecture import DEFAULT, HIDDEN, Architecture
from remotely_rl.networks.layers import connected_layers, in_float32, orthogonal_init
from remotely_rl.trees import Tree


class MLP(nn.Module):
    """Separate policy and value networks, each with two layers of 64 units by default.

    They share only the normalizer or encoder.  Values of such environments are large, and in shared
    layers their gradient drowns the policy's: CartPole takes ten times as many steps.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        outputs: int,
        encoder: nn.Module | None = None,
        architecture: Architecture = DEFAULT,
    ):
        """`encoder`, if any, maps observations to vectors of this shape, without a normalizer."""
        super().__init__()
        self.normalizer = encoder or architecture.input_layer(observation_shape)
        inputs = math.prod(observation_shape)
        self.policy_body, width = mlp_body(inputs, architecture)
        self.value_body, _ = mlp_body(inputs, architecture)
        self.policy, self.value = nn.Linear(width, outputs), nn.Linear(width, 1)
        orthogonal_init(self.policy, 0.01)
        orthogonal_init(self.value, 1.0)

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        normal = self.normalizer(obs).flatten(1)
        policy = in_float32(self.policy, self.policy_body(normal))
        return policy, in_float32(self.value, self.value_body(normal)).squeeze(-1)


def mlp_body(inputs: int, architecture: Architecture) -> tuple[nn.Sequential, int]:
    """Make the hidden layers for a vector; return them and their number of output features."""
    hidden = HIDDEN if architecture.hidden is None else architecture.hidden
    activation = architecture.activation_or(nn.Tanh)
    layers = nn.Sequential(*connected_layers(inputs, hidden, activation))
    orthogonal_init(layers, math.sqrt(2))
    return layers, (inputs, *hidden)[-1]
