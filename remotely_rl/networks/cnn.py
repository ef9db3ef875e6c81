"""Convolutional networks for small images: NatureCNN (84x84) and SmallCNN (42x42)."""

import torch
from torch import nn

from remotely_rl.networks.actor_critic import ActorCritic, with_features
from remotely_rl.networks.normalizer import Normalizer


class NatureCNN(ActorCritic):
    """Three convolutions and 512 features, for 84x84 images.

    Mnih et al. 2015, Human-level control through deep reinforcement learning.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        convolutions = nn.Sequential(
            nn.Conv2d(observation_shape[0], 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        body = with_features(convolutions, observation_shape, 512)
        super().__init__(Normalizer(observation_shape), body, 512, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class SmallCNN(ActorCritic):
    """Two convolutions and 256 features, for 42x42 images.

    The strides are 3 and 2 where IMPALA's shallow network has 4 and 2.  At this size Pong's ball
    is one pixel: with larger strides the agent learns to return it but not to aim.  On a CPU,
    SmallCNN trains on ten times as many steps per second as NatureCNN does at 84x84.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        convolutions = nn.Sequential(
            nn.Conv2d(observation_shape[0], 16, 6, stride=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        body = with_features(convolutions, observation_shape, 256)
        super().__init__(Normalizer(observation_shape), body, 256, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
