"""Parts of the networks: layers, initialization, and heads that compute in float32."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def orthogonal_init(module: nn.Module, gain: float) -> None:
    """Initialize all linear layers and convolutions: orthogonal weights, zero biases."""
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(part.weight, gain)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def in_float32(head: nn.Module, features: Tensor) -> Tensor:
    """Apply a head in float32, whatever the body's precision.

    Two actions may differ by less than bfloat16 resolves.
    """
    with without_autocast(features):
        return cast(Tensor, head(features.float()))


def without_autocast(features: Tensor) -> AbstractContextManager[Any]:
    """Return a context without autocast: an empty one if there is none, which costs less."""
    kind = features.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def connected_layers(
    inputs: int, hidden: Sequence[int], activation: Callable[[], nn.Module]
) -> list[nn.Module]:
    """Make fully connected layers with these numbers of units, each followed by an activation."""
    pairs = itertools.pairwise((inputs, *hidden))
    return [layer for pair in pairs for layer in (nn.Linear(*pair), activation())]


def add_layer_norm(model: nn.Module) -> nn.Module:
    """Normalize what leaves each layer of a model's sequences; return the model.

    Layer norm (Ba et al. 2016, https://arxiv.org/abs/1607.06450) is over the features of a linear
    layer, and over channels and pixels of a convolution, with a scale and shift for each channel.
    Heads are in no sequence, and stay as they are.
    """
    for sequence in [part for part in model.modules() if isinstance(part, nn.Sequential)]:
        for place, layer in reversed(list(enumerate(sequence, 1))):
            if isinstance(layer, nn.Linear):
                sequence.insert(place, nn.LayerNorm(layer.out_features))
            elif isinstance(layer, nn.Conv2d):
                sequence.insert(place, nn.GroupNorm(1, layer.out_channels))
    return model


def width_of(body: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the number of features of a body, for images of this shape."""
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).shape[1])


class FreeOutputs(nn.Module):
    """A linear layer, of which some outputs are parameters of their own: they ignore the input."""

    depends: Tensor  # [outputs, 1]: 0 for outputs that ignore the input, else 1

    def __init__(self, layer: nn.Linear, free: Tensor):
        """`free` [outputs] is true for these outputs; the layer's parameters become its own."""
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("depends", (~free).float()[:, None])

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight * self.depends, self.bias)


@torch.no_grad()
def start_policy(head: nn.Linear, start: Tensor) -> None:
    """Set the bias of a policy head with small weights, so that the policy starts near `start`."""
    head.bias.copy_(start)
