"""Signal and noise in gradients: hand-worked numbers, and vectors with a known signal."""

import math

import pytest
import torch
from torch import Tensor

from remotely_rl.functions import gradients

WIDTH = 100_000


def normal(seed: int, deviation: float = 1.0) -> Tensor:
    return deviation * torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


def test_the_cosine_does_not_depend_on_scale() -> None:
    one, other = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    assert gradients.cosine(one, other) == pytest.approx(24 / 25)
    assert gradients.cosine(1e-30 * one, -7 * other) == pytest.approx(-24 / 25)
    assert math.isnan(gradients.cosine(one, torch.zeros(2)))


def test_sign_agreement_ignores_zeros() -> None:
    one, other = torch.tensor([1.0, -2.0, 3.0, 0.0, 5.0]), torch.tensor([2.0, -1.0, -1.0, 4.0, 0.0])
    assert gradients.sign_agreement(one, other) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("signal", "cosine"), [(0, 0.7071), (0.1, 0.7385), (0.5, 0.8165), (1, 0.8660), (4, 0.9487)]
)
def test_the_cosine_of_half_a_batch_follows_from_signal_to_noise(
    signal: float, cosine: float
) -> None:
    assert gradients.cosine_of_half(signal) == pytest.approx(cosine, abs=5e-5)
    mean = normal(0, math.sqrt(signal))
    half, other = mean + normal(1), mean + normal(2)
    assert gradients.cosine(half, (half + other) / 2) == pytest.approx(cosine, abs=3e-3)


def test_halves_of_pure_noise_are_orthogonal() -> None:
    half, other = normal(1), normal(2)
    whole = (half + other) / 2
    assert gradients.cosine(half, whole) == pytest.approx(1 / math.sqrt(2), abs=3e-3)
    assert gradients.sign_agreement(half, whole) == pytest.approx(0.75, abs=5e-3)
    assert gradients.cosine(half, half) == pytest.approx(1)
    assert gradients.sign_agreement(half, half) == 1


@pytest.mark.parametrize(
    ("cosine", "agree"), [(-1, 0), (0, 0.5), (1 / math.sqrt(2), 0.75), (math.sqrt(3) / 2, 5 / 6)]
)
def test_sign_agreement_follows_from_the_cosine(cosine: float, agree: float) -> None:
    assert gradients.sign_agreement_at(cosine) == pytest.approx(agree)
    one, other = normal(1), normal(2)
    at_that_cosine = cosine * one + math.sqrt(1 - cosine**2) * other
    assert gradients.sign_agreement(one, at_that_cosine) == pytest.approx(agree, abs=5e-3)


def test_the_noise_scale_matches_hand_worked_numbers() -> None:
    # |G|^2 + S / 32 = 3 and |G|^2 + S / 64 = 2
    found = gradients.noise_scale(3, 32, 2, 64)
    assert found.signal == pytest.approx(1)
    assert found.noise == pytest.approx(64)
    assert found.rows == pytest.approx(64)
    assert gradients.NoiseScale(-0.1, 5).rows == math.inf


def test_the_noise_scale_of_a_known_signal_is_found() -> None:
    mean, rows = normal(0, 0.5), 8  # |G|^2 = WIDTH / 4, S = WIDTH
    few = mean + normal(1) / math.sqrt(rows)
    many = mean + normal(2) / math.sqrt(10 * rows)
    squares = [float(gradient.double().square().sum()) for gradient in (few, many)]
    found = gradients.noise_scale(squares[0], rows, squares[1], 10 * rows)
    assert found.signal == pytest.approx(WIDTH / 4, rel=0.03)
    assert found.rows == pytest.approx(4, rel=0.1)


def test_flat_concatenates_gradients_in_order() -> None:
    made = gradients.flat([torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0])])
    assert made.tolist() == [1, 2, 3, 4, 5]
