"""ActorCritic, the base of the networks for images: normalizer, shared body, two linear heads."""

import math

import torch
from torch import Tensor, nn

from remotely_rl.networks.layers import in_float32, orthogonal_init
from remotely_rl.networks.normalizer import Normalizer


class ActorCritic(nn.Module):
    """A normalizer, a body that maps to `width` features, and a linear head each for policy
    and value."""

    def __init__(self, normalizer: Normalizer, body: nn.Module, width: int, outputs: int):
        super().__init__()
        self.normalizer = normalizer
        self.body = body
        self.width = width
        self.policy = nn.Linear(width, outputs)
        self.value = nn.Linear(width, 1)
        orthogonal_init(self.body, math.sqrt(2))
        orthogonal_init(self.policy, 0.01)  # starts close to uniform
        orthogonal_init(self.value, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(self.normalizer(obs))
        return in_float32(self.policy, features), in_float32(self.value, features).squeeze(-1)


def with_features(convolutions: nn.Sequential, shape: tuple[int, ...], width: int) -> nn.Module:
    """Add a linear layer of `width` features to convolutions of images of this shape."""
    with torch.no_grad():
        flat = int(convolutions(torch.zeros(1, *shape)).shape[1])
    return nn.Sequential(convolutions, nn.Linear(flat, width), nn.ReLU())
