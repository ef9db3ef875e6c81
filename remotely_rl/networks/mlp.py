"""MLP, the network for observations that are a vector, or that an encoder makes a vector of."""

import math

from torch import Tensor, nn

from remotely_rl.networks.layers import in_float32, orthogonal_init, tanh_layers
from remotely_rl.networks.normalizer import Normalizer
from remotely_rl.trees import Tree


class MLP(nn.Module):
    """Two layers of 64 units each for policy and value, for observations that are a vector.

    Policy and value share only what makes the vector.  Values are large here, and in shared layers
    their gradient drowns the policy's: with these, CartPole takes ten times as many steps.
    """

    def __init__(
        self, observation_shape: tuple[int, ...], outputs: int, encoder: nn.Module | None = None
    ):
        """`encoder` maps other observations to vectors of this shape, in the normalizer's place."""
        super().__init__()
        self.normalizer = encoder or Normalizer(observation_shape)
        inputs = math.prod(observation_shape)
        self.policy_body, self.value_body = tanh_layers(inputs), tanh_layers(inputs)
        self.policy, self.value = nn.Linear(64, outputs), nn.Linear(64, 1)
        orthogonal_init(self.policy, 0.01)
        orthogonal_init(self.value, 1.0)

    def forward(self, obs: Tree) -> tuple[Tensor, Tensor]:
        normal = self.normalizer(obs).flatten(1)
        policy = in_float32(self.policy, self.policy_body(normal))
        return policy, in_float32(self.value, self.value_body(normal)).squeeze(-1)
