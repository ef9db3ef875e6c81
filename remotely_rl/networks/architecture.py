"""The architecture of the networks made here: layers, activation, convolutions, input.

A Config has it as fields (`Common.architecture`).  What is None is as each network has it.
"""

import operator
from dataclasses import dataclass
from typing import Any

from torch import nn

from remotely_rl.errors import TrainingError, nearest
from remotely_rl.networks.normalizer import Normalizer, Scaler
from remotely_rl.trees import Path

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU,
}  # fmt: skip
NETWORKS = ("auto", "mlp", "nature", "small", "tiny", "resnet")
HIDDEN = (64, 64)  # of networks for vectors


def check_choice(name: str, given: Any, choices: tuple[str, ...]) -> None:
    """Raises TrainingError for a choice that there is not."""
    if given not in choices:
        hint = nearest(given, choices) if isinstance(given, str) else ""
        raise TrainingError(f"{name} must be {', '.join(choices)}, not {given!r}{hint}")


@dataclass(frozen=True)
class Architecture:
    """What a network is made of.

    hidden       units of each fully connected layer before the heads
    activation   of all layers, one of ACTIVATIONS
    network      for images, one of NETWORKS; auto is the one that fits their size
    lstm         units of an LSTM before the heads, or 0
    normalizes   whether observations are normalized by running statistics

    Raises TrainingError for an activation or a network that does not exist.
    """

    hidden: tuple[int, ...] | None = None
    activation: str | None = None
    network: str = "auto"
    lstm: int = 0
    normalizes: bool = True

    def __post_init__(self) -> None:
        if self.activation is not None:
            check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("network", self.network, NETWORKS)

    def activation_or(self, usual: type[nn.Module]) -> type[nn.Module]:
        """The class of activations; the usual one, if none is asked for."""
        return usual if self.activation is None else ACTIVATIONS[self.activation]

    def input_layer(self, shape: tuple[int, ...], of: Path = ()) -> nn.Module:
        """Make the first layer, for an observation or that leaf of it."""
        return Normalizer(shape, of=of) if self.normalizes else Scaler()


DEFAULT = Architecture()


def hidden_of(given: Any) -> tuple[int, ...] | None:
    """The units of each layer that "256,256" says, or (256, 256), or 256; None for None.

    Raises TrainingError for what says none.
    """
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) and given.strip() else given
    parts = (parts,) if isinstance(parts, int) else parts
    try:
        units = tuple(int(p) if isinstance(p, str) else operator.index(p) for p in parts)
    except (TypeError, ValueError):
        units = (0,)
    if any(one < 1 for one in units):
        raise TrainingError(
            f"hidden must be the units of each layer, such as 256,256, not {given!r}"
        )
    return units
