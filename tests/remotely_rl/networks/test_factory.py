"""The default networks, your own, and what is said of one that does not fit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remotely_rl import networks
from remotely_rl.errors import TrainingError

BYTES, FLOATS = np.dtype(np.uint8), np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((4, 84, 84), BYTES, networks.NatureCNN),
        ((3, 64, 72), BYTES, networks.NatureCNN),
        ((4, 42, 42), BYTES, networks.SmallCNN),
        ((4,), FLOATS, networks.MLP),
        ((3, 5, 5), BYTES, networks.MLP),
    ],
)
def test_the_network_that_fits_the_observations_is_chosen(
    shape: tuple[int, ...], dtype: np.dtype[Any], kind: type[nn.Module]
) -> None:
    model = networks.build(None, shape, dtype, 6)
    assert type(model) is kind
    policy, value = model(torch.from_numpy(np.zeros((5, *shape), dtype)))
    assert policy.shape == (5, 6)
    assert value.shape == (5,)


def test_a_module_that_is_given_made_is_copied() -> None:
    mine = networks.MLP((4,), 2)
    assert networks.build(mine, (4,), FLOATS, 2) is not mine


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "width"),
    [
        ((4, 42, 42), BYTES, networks.Recurrent, 16),
        ((3, 64, 64), BYTES, networks.Recurrent, 16),
        ((5,), FLOATS, networks.RecurrentMLP, 32),
    ],
)
def test_the_network_that_fits_gets_a_memory_before_its_heads(
    shape: tuple[int, ...], dtype: np.dtype[Any], kind: type[nn.Module], width: int
) -> None:
    model = networks.build(None, shape, dtype, 6, lstm_units=8)
    assert type(model) is kind
    assert networks.is_recurrent(model)
    obs = torch.from_numpy(np.zeros((2, 3, *shape), dtype))
    begins = torch.ones(2, 3).bool()
    policy, value, state = networks.unroll(model, obs, networks.initial_state(model, 3), begins)
    assert policy.shape == (2, 3, 6)
    assert value.shape == (2, 3)
    assert state.shape == (3, width)


class NoValue(nn.Module):
    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__()
        self.layer = nn.Linear(shape[0], outputs)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs)  # type: ignore[no-any-return]


class WideValue(NoValue):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.layer(obs), self.layer(obs)[:, :1]


class TooFewActions(NoValue):
    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__(shape, outputs - 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.layer(obs), self.layer(obs)[:, 0]


class OtherInput(WideValue):
    def __init__(self, shape: tuple[int, ...], outputs: int):
        super().__init__((9,), outputs)


class Forgetful(NoValue):
    """Says that it has a memory, and gives none back."""

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, 7)

    def forward(  # type: ignore[override]
        self, obs: Tensor, state: Tensor, begins: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.layer(obs), self.layer(obs)[..., 0]


class OneStepOnly(Forgetful):
    def forward(  # type: ignore[override]
        self, obs: Tensor, state: Tensor, begins: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.layer(obs)[0], self.layer(obs)[0, :, 0], state


class NoPieces(Forgetful):
    def forward(self, obs: Tensor) -> Tensor:  # type: ignore[override]
        return obs


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (NoValue, r"NoValue maps observations \[2, 4\] to a Tensor; expected \(policy \[2, 3\]"),
        (WideValue, r"\(policy \[2, 3\], value \[2, 1\]\); expected .*value \[2\]\)"),
        (TooFewActions, r"\(policy \[2, 2\], value \[2\]\); expected \(policy \[2, 3\]"),
        (OtherInput, r"OtherInput fails on observations of shape \[2, 4\] \(float32\)"),
        (lambda shape, outputs: "a model", "made a str; expected a torch.nn.Module"),
        (
            Forgetful,
            r"to \(policy \[1, 2, 3\], value \[1, 2\]\); expected \(.*, state \[2, 7\]\)",
        ),
        (OneStepOnly, r"to \(policy \[2, 3\], value \[2\], state \[2, 7\]\); expected"),
        (NoPieces, r"NoPieces fails on observations .* takes 2 positional arguments"),
    ],
)
def test_a_model_that_does_not_fit_is_told_what_was_expected_and_what_it_gave(
    model: Any, said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        networks.build(model, (4,), FLOATS, 3)


@pytest.mark.parametrize("own", [networks.MLP, networks.MLP((4,), 3)], ids=["class", "made"])
def test_a_model_of_ones_own_brings_its_memory_itself(own: networks.ModelSource) -> None:
    with pytest.raises(TrainingError, match=r"a model of your own brings its own .* lstm at 0"):
        networks.build(own, (4,), FLOATS, 3, lstm_units=64)
