"""What the networks here are made of: how weights begin, and heads in float32."""

import math
from typing import cast

import torch
from torch import Tensor, nn


def orthogonal(module: nn.Module, gain: float) -> None:
    """Begins all linear layers and convolutions with orthogonal weights and no bias."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(part.weight, gain)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def ask(head: nn.Linear, features: Tensor) -> Tensor:
    """In float32, whatever the body computes in: actions may differ by less than bfloat16 tells."""
    with torch.autocast(features.device.type, enabled=False):
        return cast(Tensor, head(features.float()))


def tanh_layers(inputs: int) -> nn.Sequential:
    """Two layers of 64, for observations that are a vector."""
    layers = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    orthogonal(layers, math.sqrt(2))
    return layers
