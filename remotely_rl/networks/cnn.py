"""Networks for images: NatureCNN (84x84), SmallCNN (42x42), TinyCNN (below 20), IMPALA's ResNet.

The last ReLU comes after Flatten, which changes no value.  Before it, its gradient would mix two
memory layouts, and an update in bfloat16 would take 4 to 9 % longer on a CPU.
"""

import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from remotely_rl.errors import TrainingError
from remotely_rl.networks.architecture import DEFAULT, Architecture
from remotely_rl.networks.layers import connected_layers, in_float32, orthogonal_init, width_of


class ActorCritic(nn.Module):
    """A normalizer, a body with `width` output features, and linear policy and value heads."""

    def __init__(self, normalizer: nn.Module, body: nn.Module, width: int, outputs: int):
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


class CNN(ActorCritic):
    """Convolutions, which subclasses define, fully connected layers, and heads."""

    hidden: ClassVar[tuple[int, ...]] = (256,)  # default units of the fully connected layers
    least_side: ClassVar[int] = 1  # the smallest image side for which a pixel is left
    fits: ClassVar[int] = 0  # the smallest image side for which `auto` chooses this network

    def __init__(
        self, observation_shape: tuple[int, ...], outputs: int, architecture: Architecture = DEFAULT
    ):
        activation = architecture.activation_or(nn.ReLU)
        convolutions = self.convolutions(observation_shape[0], activation)
        hidden = self.hidden if architecture.hidden is None else architecture.hidden
        flat = width_of(convolutions, observation_shape)
        body = nn.Sequential(convolutions, *connected_layers(flat, hidden, activation))
        normalizer = architecture.input_layer(observation_shape)
        super().__init__(normalizer, body, (flat, *hidden)[-1], outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @staticmethod
    def convolutions(channels: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
        """Make the layers: images [N, channels, height, width] -> features [N, width]."""
        raise NotImplementedError


class NatureCNN(CNN):
    """Three convolutions and 512 features, for 84x84 images.

    Mnih et al. 2015, Human-level control through deep reinforcement learning.
    """

    hidden, least_side, fits = (512,), 36, 64

    @staticmethod
    def convolutions(channels: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, 32, 8, stride=4),
            activation(),
            nn.Conv2d(32, 64, 4, stride=2),
            activation(),
            nn.Conv2d(64, 64, 3),
            nn.Flatten(),
            activation(),
        )


class SmallCNN(CNN):
    """Two convolutions and 256 features, for 42x42 images.

    The strides are 3 and 2, where IMPALA's shallow network has 4 and 2.  At this size Pong's ball
    is one pixel: with larger strides the agent learns to return it but not to aim.  On a CPU,
    SmallCNN trains at ten times the steps per second of NatureCNN at 84x84.
    """

    least_side, fits = 12, 20

    @staticmethod
    def convolutions(channels: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, 16, 6, stride=3),
            activation(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.Flatten(),
            activation(),
        )


class TinyCNN(CNN):
    """Two convolutions without downsampling and 256 features, for images with sides below 20.

    Such images are boards and the views of grid worlds.
    """

    @staticmethod
    def convolutions(channels: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            activation(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.Flatten(),
            activation(),
        )


class ResNet(CNN):
    """IMPALA's deep network: three stages of two residual blocks each, 15 convolutions.

    Espeholt et al. 2018, https://arxiv.org/abs/1802.01561, figure 3, without the LSTM.
    """

    @staticmethod
    def convolutions(channels: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
        stages: list[nn.Module] = []
        for width in (16, 32, 32):
            stages += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                _ResidualBlock(width, activation),
                _ResidualBlock(width, activation),
            ]
            channels = width
        return nn.Sequential(*stages, activation(), nn.Flatten())


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int, activation: type[nn.Module]):
        super().__init__()
        self.layers = nn.Sequential(
            activation(),
            nn.Conv2d(channels, channels, 3, padding=1),
            activation(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.layers(x))


# The names of networks in Architecture.
CNNS: dict[str, type[CNN]] = {
    "nature": NatureCNN,
    "small": SmallCNN,
    "tiny": TinyCNN,
    "resnet": ResNet,
}


def cnn_for(shape: tuple[int, ...], network: str = "auto") -> type[CNN]:
    """Return the class of network for images of this shape, [channels, height, width].

    Raises TrainingError if `network` needs larger images.
    """
    side = min(shape[1:])
    if network == "auto":
        return next(kind for kind in (NatureCNN, SmallCNN, TinyCNN) if side >= kind.fits)
    kind = CNNS[network]
    if side < kind.least_side:
        raise TrainingError(
            f"network={network} needs images with sides of at least {kind.least_side}, and these"
            f" have {shape[1]}x{shape[2]}; use auto, which chooses by their size"
        )
    return kind
