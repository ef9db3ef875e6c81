"""What the networks here are made of: initial weights, and heads that compute in float32."""

import itertools
from collections.abc import Sequence
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


def connected_layers(
    inputs: int, hidden: Sequence[int], activation: type[nn.Module]
) -> list[nn.Module]:
    """A fully connected layer of each of these numbers of units, each with an activation."""
    pairs = itertools.pairwise((inputs, *hidden))
    return [layer for pair in pairs for layer in (nn.Linear(*pair), activation())]


def width_of(body: nn.Module, shape: tuple[int, ...]) -> int:
    """How many features a body makes of an image of this shape."""
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).shape[1])


@torch.no_grad()
def start_policy(head: nn.Linear, start: Tensor) -> None:
    """Let a head with small weights and no bias yet begin with a policy close to `start`."""
    head.bias.copy_(start)
