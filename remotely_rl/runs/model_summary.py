"""What a run says at its start about its network and the observations.

model: 3 convolutions, 512; LSTM 64; 1,868,967 parameters; sees images of 4 channels, 84x84
"""

import math
from typing import Any, Protocol

import gymnasium
from torch import nn

from remotely_rl.networks import precision

# Sides of what could be an image: below, convolutions have nothing to step over.
SIDE = 20


class Seen(Protocol):
    """What the summary needs of an environment."""

    @property
    def space(self) -> gymnasium.Space[Any]: ...
    @property
    def observation_shape(self) -> tuple[int, ...]: ...


def lines(model: nn.Module, envs: Seen) -> list[str]:
    """The summary, and a warning if there are images that no convolution sees."""
    size = sum(parameter.numel() for parameter in model.parameters())
    said = [f"model: {make_of(model)}; {size:,} parameters; sees {seen(envs)}"]
    is_ours = type(model).__module__.startswith("remotely_rl.")
    if is_ours and has_image(envs.space) and not _convolves(model):
        said.append(
            "no convolutions see the images in it: for these, observe one uint8 image [height,"
            " width, channels], or pass a model of your own (model=, --model)"
        )
    return said


def make_of(model: nn.Module) -> str:
    """The layers of a network of the library, without the value's own; a name for others."""
    if not type(model).__module__.startswith("remotely_rl."):
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
    space, shape = envs.space, envs.observation_shape
    count = math.prod(shape)
    if not isinstance(space, gymnasium.spaces.Box):
        return f"a {type(space).__name__}, flattened to {count:,} numbers"
    if len(shape) == 3:
        last = "" if shape == space.shape else ", which came last"
        return f"images of {shape[0]} channels{last}, {shape[1]}x{shape[2]}"
    if len(shape) > 1:
        return f"{'x'.join(map(str, shape))}, flattened to {count:,} numbers"
    return f"{count:,} number{'s' if count > 1 else ''}"


def has_image(space: gymnasium.Space[object]) -> bool:
    """Whether a space contains what looks like an image."""
    if isinstance(space, gymnasium.spaces.Dict):
        return any(has_image(part) for part in space.spaces.values())
    if isinstance(space, gymnasium.spaces.Tuple):
        return any(has_image(part) for part in space.spaces)
    sides = [side for side in space.shape or () if side >= SIDE]
    return isinstance(space, gymnasium.spaces.Box) and len(sides) >= 2


def _convolves(model: nn.Module) -> bool:
    return any(isinstance(part, precision.CONVOLUTIONS) for part in model.modules())
