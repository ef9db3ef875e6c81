"""Noisy layers: without noise they are linear, and their noise is factorised."""

import math

import pytest
import torch
from torch import nn

from remotely_rl import networks
from remotely_rl.networks.noisy import NoisyLinear


def test_without_noise_a_layer_is_linear_and_has_the_weights_that_it_had() -> None:
    plain = nn.Linear(5, 3)
    x = torch.randn(7, 5)

    torch.testing.assert_close(NoisyLinear(plain)(x), plain(x))


def test_noise_is_a_product_of_one_number_of_the_input_and_one_of_the_output() -> None:
    layer = NoisyLinear(nn.Linear(5, 3))
    layer.resample(torch.Generator().manual_seed(0))
    x = torch.randn(7, 5)

    weight = layer.weight + layer.sigma_weight * torch.outer(layer.noise_out, layer.noise_in)
    bias = layer.bias + layer.sigma_bias * layer.noise_out
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, bias))
    assert layer.sigma_weight.flatten().tolist() == pytest.approx([0.5 / math.sqrt(5)] * 15)


def test_noise_has_the_moments_of_the_paper() -> None:
    layer = NoisyLinear(nn.Linear(100_000, 2))
    layer.resample(torch.Generator().manual_seed(0))

    assert float(layer.noise_in.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(layer.noise_in.square().mean()) == pytest.approx(0.79788, abs=0.01)


def test_all_linear_layers_of_a_model_become_noisy_and_draw_anew() -> None:
    model = networks.make_noisy(networks.SmallCNN((4, 42, 42), 6))
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    assert len(layers) == 3
    assert all(isinstance(layer, NoisyLinear) for layer in layers)

    obs = torch.randint(0, 255, (2, 4, 42, 42), dtype=torch.uint8)
    random = torch.Generator().manual_seed(0)
    means = model(obs)[0]
    torch.testing.assert_close(model(obs)[0], means)
    networks.resample(model, random)
    first = model(obs)[0]
    networks.resample(model, random)
    assert not torch.allclose(first, means)
    assert not torch.allclose(first, model(obs)[0])


def test_both_the_mean_and_the_deviation_of_a_weight_are_learnt() -> None:
    layer = NoisyLinear(nn.Linear(4, 2))
    layer.resample(torch.Generator().manual_seed(0))

    layer(torch.ones(3, 4)).sum().backward()

    assert all(part.grad is not None and bool(part.grad.any()) for part in layer.parameters())


def test_noise_is_not_saved_so_a_loaded_model_plays_by_its_means() -> None:
    layer = NoisyLinear(nn.Linear(4, 2))
    layer.resample(torch.Generator().manual_seed(0))
    loaded = NoisyLinear(nn.Linear(4, 2))
    loaded.load_state_dict(layer.state_dict())
    x = torch.randn(3, 4)

    torch.testing.assert_close(loaded(x), nn.functional.linear(x, layer.weight, layer.bias))
