"""MLP, the network for observations that are a vector."""

import math

from torch import Tensor, nn

from remotely_rl.networks.layers import in_float32, orthogonal_init, tanh_layers
from remotely_rl.networks.normalizer import Normalizer


class MLP(nn.Module):
    """Two layers of 64 units each for policy and value, for observations that are a vector.

    Policy and value share only the normalizer.  Values are large here, and in shared layers their
    gradient drowns the policy's: with these, CartPole takes ten times as many steps.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        super().__init__()
        self.normalizer = Normalizer(observation_shape)
        inputs = math.prod(observation_shape)
        self.policy_body, self.value_body = tanh_layers(inputs), tanh_layers(inputs)
        self.policy, self.value = nn.Linear(64, outputs), nn.Linear(64, 1)
        orthogonal_init(self.policy, 0.01)
        orthogonal_init(self.value, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        normal = self.normalizer(obs).flatten(1)
        policy = in_float32(self.policy, self.policy_body(normal))
        return policy, in_float32(self.value, self.value_body(normal)).squeeze(-1)
