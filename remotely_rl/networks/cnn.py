"""Networks for images: NatureCNN (84x84), SmallCNN (42x42), TinyCNN (below 20), IMPALA's ResNet.

The last ReLU comes after Flatten, which changes no value.  Before it, its gradient would be of two
layouts, rows by channel and rows by pixel, and an update in bfloat16 would take 4 to 9 % longer on
a CPU.
"""

import math
from typing import cast

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


def nature_convolutions(channels: int) -> nn.Sequential:
    """Three convolutions (Mnih et al. 2015)."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.Flatten(),
        nn.ReLU(),
    )


def small_convolutions(channels: int) -> nn.Sequential:
    """Two convolutions for sides of 20 and more; see SmallCNN."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 6, stride=3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.Flatten(),
        nn.ReLU(),
    )


def tiny_convolutions(channels: int) -> nn.Sequential:
    """Two convolutions that keep each pixel, for boards and the views of grid worlds."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Flatten(),
        nn.ReLU(),
    )


class NatureCNN(ActorCritic):
    """Three convolutions and 512 features, for 84x84 images.

    Mnih et al. 2015, Human-level control through deep reinforcement learning.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        body = with_features(nature_convolutions(observation_shape[0]), observation_shape, 512)
        super().__init__(Normalizer(observation_shape), body, 512, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class SmallCNN(ActorCritic):
    """Two convolutions and 256 features, for 42x42 images.

    The strides are 3 and 2 where IMPALA's shallow network has 4 and 2.  At this size Pong's ball
    is one pixel: with larger strides the agent learns to return it but not to aim.  On a CPU,
    SmallCNN trains on ten times as many steps per second as NatureCNN does at 84x84.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        body = with_features(small_convolutions(observation_shape[0]), observation_shape, 256)
        super().__init__(Normalizer(observation_shape), body, 256, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class TinyCNN(ActorCritic):
    """Two convolutions without strides and 256 features, for images with sides below 20."""

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        body = with_features(tiny_convolutions(observation_shape[0]), observation_shape, 256)
        super().__init__(Normalizer(observation_shape), body, 256, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


# The least side of an image, and what fits it.
SIZES = ((64, nature_convolutions, NatureCNN), (20, small_convolutions, SmallCNN))


def convolutions_for(shape: tuple[int, ...]) -> nn.Sequential:
    """Return the convolutions for images [channels, height, width] of this shape."""
    for side, convolutions, _ in SIZES:
        if min(shape[1:]) >= side:
            return convolutions(shape[0])
    return tiny_convolutions(shape[0])


def network_for(shape: tuple[int, ...]) -> type[ActorCritic]:
    """Return the class of network for images of this shape."""
    for side, _, network in SIZES:
        if min(shape[1:]) >= side:
            return network
    return TinyCNN


class ResNet(ActorCritic):
    """IMPALA's deep network: three stages of two residual blocks each, 15 convolutions.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, figure 3, without the LSTM.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        stages: list[nn.Module] = []
        channels = observation_shape[0]
        for width in (16, 32, 32):
            stages += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                _ResidualBlock(width),
                _ResidualBlock(width),
            ]
            channels = width
        convolutions = nn.Sequential(*stages, nn.ReLU(), nn.Flatten())
        body = with_features(convolutions, observation_shape, 256)
        super().__init__(Normalizer(observation_shape), body, 256, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.layers(x))
