"""ResNet, the deep network of IMPALA."""

from typing import cast

import torch
from torch import Tensor, nn

from remotely_rl.networks.actor_critic import ActorCritic, with_features
from remotely_rl.networks.normalizer import Normalizer


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
