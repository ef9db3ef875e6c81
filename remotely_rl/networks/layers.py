"""What the networks here are made of: initial weights, and heads that compute in float32."""

import math
from typing import cast

import torch
from torch import Tensor, nn


def orthogonal_init(module: nn.Module, gain: float) -> None:
    """Initialize all linear layers and convolutions: orthogonal weights, zero biases."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(part.weight, gain)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def in_float32(head: nn.Linear, features: Tensor) -> Tensor:
    """Apply a head in float32, whatever the body computes in.

    Two actions may differ by less than bfloat16 resolves.
    """
    with torch.autocast(features.device.type, enabled=False):
        return cast(Tensor, head(features.float()))


def tanh_layers(inputs: int) -> nn.Sequential:
    """Two layers of 64 units with tanh, for observations that are a vector."""
    layers = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    orthogonal_init(layers, math.sqrt(2))
    return layers
