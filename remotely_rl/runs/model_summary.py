"""What a run says at its start about its network and the observations.

model: 3 convolutions, 512; LSTM 64; 1,868,967 parameters; sees images of 4 channels, 84x84
"""

from typing import Any, Protocol

import gymnasium
from torch import nn

from remotely_rl import trees
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION, Leaf
from remotely_rl.networks import QNetwork, SoftActorCritic, precision
from remotely_rl.networks.encoders import is_image
from remotely_rl.networks.masked import MaskedPolicy
from remotely_rl.trees import Tree

# Sides of what could be an image: below, convolutions have nothing to step over.
SIDE = 20


class Seen(Protocol):
    """What the summary needs of an environment."""

    @property
    def space(self) -> gymnasium.Space[Any]: ...
    @property
    def spec(self) -> Tree: ...


def lines(model: nn.Module, envs: Seen) -> list[str]:
    """The summary, and a warning if there are images that no convolution sees."""
    size = sum(parameter.numel() for parameter in model.parameters())
    said = [f"model: {make_of(model)}; {size:,} parameters; sees {seen(envs)}"]
    is_ours = _is_ours(model)
    if is_ours and has_image(envs.space) and not _convolves(model):
        said.append(
            "no convolutions see the images in it: for these, observe images [height, width,"
            " channels], or pass a model of your own (model=, --model)"
        )
    return said


def make_of(model: nn.Module) -> str:
    """The layers of a network of the library, without the value's own; a name for others."""
    model = _within(model)
    if not _is_ours(model):
        return type(model).__name__
    parts = [(name, part) for name, part in model.named_modules() if not name.startswith("value")]
    convolutions = sum(isinstance(part, precision.CONVOLUTIONS) for _, part in parts)
    widths = [part.out_features for name, part in parts
              if isinstance(part, nn.Linear) and name != "policy"]  # fmt: skip
    memories = [part.hidden_size for _, part in parts if isinstance(part, nn.LSTM)]
    layers = [f"{convolutions} convolutions"] if convolutions else ["MLP"]
    words = [", ".join([*layers, *map(str, widths)]), *(f"LSTM {units}" for units in memories)]
    if any(name.startswith("value_") for name, _ in model.named_children()):
        words.append("as much for the value")
    return "; ".join(words)


def seen(envs: Seen) -> str:
    """The observations, as the model receives them."""
    spec, masked = envs.spec, ""
    if isinstance(spec, dict) and ACTION_MASK in spec:
        spec, masked = spec[OBSERVATION], "; illegal actions are masked"
    if isinstance(spec, Leaf):
        return seen_leaf(spec, envs.space.shape or ()) + masked
    parts = [f"{trees.named(path)} {seen_leaf(leaf)}" for path, leaf in trees.items(spec)]
    return f"a {type(envs.space).__name__} of {', '.join(parts)}{masked}"


def seen_leaf(leaf: Leaf, original: tuple[int, ...] | None = None) -> str:
    """One array of an observation; `original` is its shape in the environment."""
    shape = leaf.shape
    if leaf.counts:
        several = f"{len(leaf.counts)} numbers, each " if shape else ""
        return f"{several}one of {' or '.join(f'{n:,}' for n in sorted(set(leaf.counts)))}"
    if is_image(leaf):
        last = "" if original in (None, shape) else ", which came last"
        channels = f"{shape[0]} channel{'s' if shape[0] > 1 else ''}" if shape[2:] else "1 channel"
        return f"images of {channels}{last}, {shape[-2]}x{shape[-1]}"
    if len(shape) > 1:
        return f"{'x'.join(map(str, shape))}, flattened to {leaf.size:,} numbers"
    return f"{leaf.size:,} number{'s' if leaf.size > 1 else ''}"


def has_image(space: gymnasium.Space[object]) -> bool:
    """Whether a space contains what looks like an image."""
    if isinstance(space, gymnasium.spaces.Dict):
        return any(has_image(part) for part in space.spaces.values())
    if isinstance(space, gymnasium.spaces.Tuple):
        return any(has_image(part) for part in space.spaces)
    sides = [side for side in space.shape or () if side >= SIDE]
    return isinstance(space, gymnasium.spaces.Box) and len(sides) >= 2


def _within(model: nn.Module) -> nn.Module:
    """The network that others are wrapped around: it may be the user's."""
    while isinstance(model, (MaskedPolicy, QNetwork, SoftActorCritic)):
        model = model.policy if isinstance(model, SoftActorCritic) else model.model
    return model


def _is_ours(model: nn.Module) -> bool:
    return type(_within(model)).__module__.startswith("remotely_rl.")


def _convolves(model: nn.Module) -> bool:
    return any(isinstance(part, precision.CONVOLUTIONS) for part in model.modules())
