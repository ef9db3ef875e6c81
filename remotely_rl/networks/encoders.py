"""Encoders: modules that map an observation to a vector of features.

    Box, MultiBinary, vectors      normalized
    images                         normalized, convolutions for their size, 256 features;
                                   as vectors if the architecture is mlp
    Discrete, MultiDiscrete        an embedding of each number
    Dict, Tuple                    the features of the parts, concatenated

A Dict's leaf `action_mask` is not encoded: it masks the policy.
"""

from typing import Any

import torch
from torch import Tensor, nn

from remotely_rl import trees
from remotely_rl.environments.observations import ACTION_MASK, ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.networks.architecture import DEFAULT, Architecture
from remotely_rl.networks.cnn import CNNS, cnn_for
from remotely_rl.networks.layers import connected_layers, orthogonal_init, width_of
from remotely_rl.trees import Path, Tree

IMAGE_FEATURES = 256
MAX_EMBEDDING = 32  # the maximum size of an embedding


class VectorEncoder(nn.Module):
    """A vector, or any array whose shape does not matter: normalized and flattened."""

    def __init__(self, leaf: ObservationLeaf, architecture: Architecture, of: Path = ()):
        super().__init__()
        self.normalizer = architecture.input_layer(leaf.shape, of)
        self.width = leaf.size

    def forward(self, obs: Tensor) -> Tensor:
        return self.normalizer(obs).flatten(1)  # type: ignore[no-any-return]


class ImageEncoder(nn.Module):
    """An image [channels, height, width], or [height, width]."""

    def __init__(self, leaf: ObservationLeaf, architecture: Architecture, of: Path = ()):
        super().__init__()
        shape = leaf.shape if len(leaf.shape) == 3 else (1, *leaf.shape)
        self.shape = shape
        self.normalizer = architecture.input_layer(shape, of)
        activation = architecture.activation_or(nn.ReLU)
        convolutions = cnn_for(shape, architecture.network).convolutions(shape[0], activation)
        flat = width_of(convolutions, shape)
        self.body = nn.Sequential(
            convolutions, *connected_layers(flat, (IMAGE_FEATURES,), activation)
        )
        self.width = IMAGE_FEATURES
        orthogonal_init(self.body, 2**0.5)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, obs: Tensor) -> Tensor:
        return self.body(self.normalizer(obs.reshape(-1, *self.shape)))  # type: ignore[no-any-return]


class DiscreteEncoder(nn.Module):
    """One or several discrete numbers: an embedding each."""

    offsets: Tensor

    def __init__(self, leaf: ObservationLeaf):
        super().__init__()
        starts, counts = torch.tensor(leaf.starts), torch.tensor(leaf.counts)
        # One table holds all embeddings.
        self.register_buffer("offsets", counts.cumsum(0) - counts - starts, persistent=False)
        size = min(MAX_EMBEDDING, max(leaf.counts))
        self.embedding = nn.Embedding(sum(leaf.counts), size)
        self.width = size * len(leaf.counts)

    def forward(self, obs: Tensor) -> Tensor:
        return self.embedding(obs.reshape(obs.shape[0], -1) + self.offsets).flatten(1)  # type: ignore[no-any-return]


class TreeEncoder(nn.Module):
    """An encoder for each leaf of a Dict or a Tuple."""

    def __init__(self, spec: Tree, architecture: Architecture):
        super().__init__()
        self.paths = [path for path, _ in trees.items(spec) if path != (ACTION_MASK,)]
        encoders = [encoder_of(trees.at(spec, path), architecture, path) for path in self.paths]
        self.leaves = nn.ModuleList(encoders)
        self.width = sum(encoder.width for encoder in encoders)

    def forward(self, obs: Tree) -> Tensor:
        pairs = zip(self.leaves, self.paths, strict=True)
        return torch.cat([leaf(trees.at(obs, path)).float() for leaf, path in pairs], 1)


def encoder_of(spec: Tree, architecture: Architecture = DEFAULT, path: Path = ()) -> Any:
    """Make the encoder of an observation: [N, ...] -> [N, encoder.width]."""
    if not isinstance(spec, ObservationLeaf):
        return TreeEncoder(spec, architecture)
    if spec.counts:
        return DiscreteEncoder(spec)
    if is_image(spec) and architecture.network != "mlp":
        return ImageEncoder(spec, architecture, path)
    return VectorEncoder(spec, architecture, path)


def check_has_images(spec: Tree, architecture: Architecture) -> None:
    """Raise TrainingError if the architecture has convolutions but no observation is an image."""
    if architecture.network in CNNS and not any(map(is_image, trees.leaves(spec))):
        raise TrainingError(
            f"network={architecture.network} is for images, and the observations have none; use"
            " auto, which chooses by the observations"
        )


LEAST_SIDE = 5  # of an image; smaller arrays are vectors
LEAST_SIDE_OF_ONE_CHANNEL = 20  # of an image without a channel axis; smaller ones may be tables


def is_image(leaf: ObservationLeaf) -> bool:
    """Return whether a leaf is encoded by convolutions: a Box or MultiBinary of such a shape."""
    if leaf.counts:
        return False
    match leaf.shape:
        case (_, height, width):
            return min(height, width) >= LEAST_SIDE
        case (height, width):
            return min(height, width) >= LEAST_SIDE_OF_ONE_CHANNEL
    return False
