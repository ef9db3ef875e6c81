"""The normalizer: running statistics, and a floor of the deviations."""

import copy

import numpy as np
import pytest
import torch

from remotely_rl import networks
from remotely_rl.environments.observations import ObservationLeaf
from tests.remotely_rl import toys


def normalizer(mean: list[float], deviation: list[float], *shape: int) -> networks.Normalizer:
    """A normalizer with these statistics."""
    made = networks.Normalizer(shape or (len(mean),))
    made.mean.copy_(torch.tensor(mean).view_as(made.mean))
    made.variance.copy_(torch.tensor(deviation).square().view_as(made.variance))
    return made


def test_each_coordinate_is_scaled_by_its_own_deviation() -> None:
    # MountainCar's position and velocity, and a pressure in pascals.
    made = normalizer([-0.5, 0.0, 100_000.0], [0.1, 0.007, 50.0])
    found = made(torch.tensor([[-0.3, 0.014, 100_100.0]]))
    # The floor is 0.00001 of the mean: (0.2 / 0.100005, 0.014 / 0.007, 100 / 51).
    torch.testing.assert_close(found, torch.tensor([[1.9999, 2.0, 1.9608]]), atol=2e-3, rtol=0)


def test_rounding_errors_are_not_amplified() -> None:
    made = normalizer([1000.0, 0.0], [0.0, 0.0])
    found = made(torch.tensor([[1000.0001, 0.0]]))  # a rounding of 1000, and a constant 0
    assert found.abs().max() <= 0.02


def test_the_floor_for_bytes_is_a_fraction_of_their_range() -> None:
    made = normalizer([0.2, 0.0], [0.22, 0.0])
    found = made(torch.tensor([[102, 51]], dtype=torch.uint8))  # 0.4 and 0.2 of 255
    torch.testing.assert_close(found, torch.tensor([[0.2 / 0.25, 0.2 / 0.03]]))


def test_the_floor_for_float_images_is_a_fraction_of_their_deviation() -> None:
    made = normalizer([0.5, 0.5], [0.3, 0.0], 1, 1, 2)
    found = made(torch.tensor([0.8, 0.6]).view(1, 1, 1, 2)).flatten()
    floor = 0.1 * (0.09 / 2) ** 0.5  # 0.021
    torch.testing.assert_close(found, torch.tensor([0.3 / (0.3 + floor), 0.1 / floor]))


def test_statistics_are_those_of_all_batches_together() -> None:
    torch.manual_seed(0)
    normalizer = networks.Normalizer((2,))
    seen = torch.randn(300, 2) * torch.tensor([3.0, 0.5]) + torch.tensor([7.0, -1.0])
    for batch in torch.split(seen, [10, 90, 200]):
        normalizer.update(batch)
    torch.testing.assert_close(normalizer.mean, seen.mean(0))
    torch.testing.assert_close(normalizer.variance, seen.var(0, unbiased=False))
    normal = normalizer(seen)
    torch.testing.assert_close(normal.mean(0), torch.zeros(2), atol=1e-4, rtol=0)


def test_old_batches_fade_once_the_horizon_is_reached() -> None:
    normalizer = networks.Normalizer((1,), horizon=100)
    normalizer.update(torch.zeros(1000, 1))
    assert normalizer.count.item() == 100
    normalizer.update(torch.ones(100, 1))
    assert normalizer.mean.item() == pytest.approx(0.5)  # as of a hundred of each


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_forward_does_not_change_the_statistics(mode: bool) -> None:
    model = toys.network().train(mode)
    before = toys.weights(model)
    model(torch.randn(50, 2))
    assert torch.equal(toys.weights(model), before)


def test_every_normalizer_counts_one_row_in_seven() -> None:
    model = networks.RecurrentMLP((2,), 3, units=4)
    obs = torch.arange(28.0).view(14, 2)
    networks.update_normalizers(model, obs)
    (normalizer,) = (part for part in model.modules() if isinstance(part, networks.Normalizer))
    assert normalizer.count.item() == 2
    assert normalizer.mean.tolist() == [7.0, 8.0]  # of the rows (0, 1) and (14, 15)


def test_an_image_without_a_channel_axis_has_the_floor_of_an_image() -> None:
    encoder = networks.encoder_of(ObservationLeaf((24, 24), np.dtype(np.float32)))
    seen = torch.rand(50, 24, 24)
    seen[:, 0, 0] = 0.0  # hardly varies
    networks.update_normalizers(encoder, seen, every=1)
    seen[0, 0, 0] = 0.01
    assert encoder.normalizer(seen.unsqueeze(1))[0, 0, 0, 0] < 1.0


def test_a_copy_does_not_use_the_cache_of_the_original() -> None:
    original = normalizer([0.0], [1.0])
    original.load_state_dict(original.state_dict())  # version 2; the copy restarts at 1
    original(torch.zeros(1, 1))
    copied = copy.deepcopy(original)
    copied.load_state_dict(normalizer([5.0], [1.0]).state_dict())
    assert copied(torch.tensor([[5.0]])).item() == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("inference_mode", [True, False])
def test_the_cache_is_invalidated_by_updates(inference_mode: bool) -> None:
    normalizer = networks.Normalizer((1,))
    normalizer.update(torch.tensor([[0.0], [2.0]]))
    with torch.inference_mode(inference_mode):
        assert normalizer(torch.tensor([[2.0]])).item() == pytest.approx(1.0, abs=1e-4)
    normalizer.update(torch.tensor([[4.0], [6.0]]))
    weight = torch.ones(1, requires_grad=True)
    (normalizer(torch.tensor([[3.0]])) * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(0.0, abs=1e-4)
