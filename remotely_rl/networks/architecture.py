"""The architecture of the built-in networks: layers, activation, convolutions, input.

It comes from the fields of a Config (`Common.architecture`).  None is each network's own default.
"""

import operator
from dataclasses import dataclass
from typing import Any

from torch import nn

from remotely_rl.errors import TrainingError, nearest
from remotely_rl.networks.normalizer import Normalizer, Scaler
from remotely_rl.trees import Path

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}
NETWORKS = ("auto", "mlp", "nature", "small", "tiny", "resnet")
NONE, LAYER, BATCH = "none", "layer", "batch"  # normalization of a layer's features
HIDDEN = (64, 64)  # default of networks for vectors


def check_choice(name: str, given: Any, choices: tuple[str, ...]) -> None:
    """Raise TrainingError for an unknown choice."""
    if given not in choices:
        hint = nearest(given, choices) if isinstance(given, str) else ""
        raise TrainingError(f"{name} must be {', '.join(choices)}, not {given!r}{hint}")


def check_norm(given: Any) -> None:
    """Raise TrainingError for an unknown `critic_norm`."""
    check_choice("critic_norm", given, (NONE, LAYER))


@dataclass(frozen=True)
class Architecture:
    """The architecture of a network.

    hidden       units of each fully connected layer before the heads
    activation   of all layers, one of ACTIVATIONS
    network      for images, one of NETWORKS; auto is chosen by their size
    lstm         units of an LSTM before the heads, or 0
    normalizes   whether observations are normalized by running statistics
    norm         of the features between layers: NONE, LAYER, or, beside critics, BATCH

    Raises TrainingError for an unknown activation or network.
    """

    hidden: tuple[int, ...] | None = None
    activation: str | None = None
    network: str = "auto"
    lstm: int = 0
    normalizes: bool = True
    norm: str = NONE

    def __post_init__(self) -> None:
        if self.activation is not None:
            check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("network", self.network, NETWORKS)

    def activation_or(self, default: type[nn.Module]) -> type[nn.Module]:
        """Return the class of activations, or the default one."""
        return default if self.activation is None else ACTIVATIONS[self.activation]

    def input_layer(self, shape: tuple[int, ...], of: Path = ()) -> nn.Module:
        """Make the first layer, for an observation or its leaf `of`."""
        return Normalizer(shape, of=of) if self.normalizes else Scaler()


DEFAULT = Architecture()


def hidden_of(given: Any) -> tuple[int, ...] | None:
    """Parse the units of each layer: "256,256", (256, 256) or 256; None stays None.

    Raises TrainingError for anything else.
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
