"""Networks, and what is said of one that does not fit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from remotely_rl import models
from remotely_rl.errors import TrainingError

BYTES, FLOATS = np.dtype(np.uint8), np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((4, 84, 84), BYTES, models.NatureCNN),
        ((3, 96, 96), BYTES, models.NatureCNN),
        ((4, 42, 42), BYTES, models.SmallCNN),
        ((4,), FLOATS, models.MLP),
        ((3, 5, 5), BYTES, models.MLP),
    ],
)
def test_the_network_that_fits_the_observations_is_chosen(
    shape: tuple[int, ...], dtype: np.dtype[Any], kind: type[nn.Module]
) -> None:
    model = models.build(None, shape, dtype, 6)
    assert type(model) is kind
    logits, value = model(torch.from_numpy(np.zeros((5, *shape), dtype)))
    assert logits.shape == (5, 6)
    assert value.shape == (5,)


def test_a_new_policy_is_close_to_uniform() -> None:
    model = models.SmallCNN((4, 42, 42), 6).eval()
    obs = torch.randint(0, 256, (8, 4, 42, 42), dtype=torch.uint8)
    with torch.no_grad():
        logits, _ = model(obs)
    assert (logits.softmax(-1) - 1 / 6).abs().max() < 0.05


def test_bytes_and_the_fractions_they_stand_for_are_normalised_alike() -> None:
    normaliser = models.Normaliser((3,))
    seen = torch.randint(0, 256, (40, 3), dtype=torch.uint8)
    normaliser.count_in(seen)
    normaliser.eval()
    torch.testing.assert_close(normaliser(seen), normaliser(seen / 255), atol=1e-5, rtol=1e-5)


def test_the_normaliser_learns_the_mean_and_deviation_of_all_batches_together() -> None:
    torch.manual_seed(0)
    normaliser = models.Normaliser((2,), floor=0.0)
    seen = torch.randn(300, 2) * torch.tensor([3.0, 0.5]) + torch.tensor([7.0, -1.0])
    for batch in torch.split(seen, [10, 90, 200]):
        normaliser.count_in(batch)
    torch.testing.assert_close(normaliser.mean, seen.mean(0))
    torch.testing.assert_close(normaliser.variance, seen.var(0, unbiased=False))
    normal = normaliser.eval()(seen)
    torch.testing.assert_close(normal.mean(0), torch.zeros(2), atol=1e-4, rtol=0)


def test_a_normaliser_that_acts_counts_nothing_in() -> None:
    normaliser = models.Normaliser((2,)).eval()
    normaliser(torch.randn(50, 2))
    assert normaliser.count.item() == 0.0
    normaliser.train()(torch.randn(50, 2))
    assert normaliser.count.item() > 0.0


def test_state_travels_as_arrays_and_is_a_copy() -> None:
    one, other = models.MLP((4,), 2), models.MLP((4,), 2)
    state = models.state_of(one)
    for array in state.values():
        array.flags.writeable = False  # as they arrive when the sender shared them
    models.load_state(other, state)
    obs = torch.randn(3, 4)
    with torch.no_grad():
        one.policy.bias.add_(1.0)
        assert not torch.equal(one.eval()(obs)[0], other.eval()(obs)[0])
        one.policy.bias.sub_(1.0)
        torch.testing.assert_close(one(obs)[0], other(obs)[0])


def test_a_module_that_is_given_made_is_copied() -> None:
    mine = models.MLP((4,), 2)
    assert models.build(mine, (4,), FLOATS, 2) is not mine


class NoValue(nn.Module):
    def __init__(self, shape: tuple[int, ...], actions: int):
        super().__init__()
        self.layer = nn.Linear(shape[0], actions)

    def forward(self, obs: Tensor) -> Tensor:
        return self.layer(obs)  # type: ignore[no-any-return]


class WideValue(NoValue):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.layer(obs), self.layer(obs)[:, :1]


class TooFewActions(NoValue):
    def __init__(self, shape: tuple[int, ...], actions: int):
        super().__init__(shape, actions - 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.layer(obs), self.layer(obs)[:, 0]


class OtherInput(WideValue):
    def __init__(self, shape: tuple[int, ...], actions: int):
        super().__init__((9,), actions)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (NoValue, r"NoValue maps observations \[2, 4\] to a Tensor; expected \(logits \[2, 3\]"),
        (WideValue, r"\(logits \[2, 3\], value \[2, 1\]\); expected .*value \[2\]\)"),
        (TooFewActions, r"\(logits \[2, 2\], value \[2\]\); expected \(logits \[2, 3\]"),
        (OtherInput, r"OtherInput fails on observations of shape \[2, 4\] \(float32\)"),
        (lambda shape, actions: "a model", "made a str, a torch.nn.Module is wanted"),
    ],
)
def test_a_model_that_does_not_fit_is_told_what_was_expected_and_what_it_gave(
    model: Any, said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        models.build(model, (4,), FLOATS, 3)
