"""Batch renormalization beside a slow oracle, and when its statistics are those of the batch."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from remotely_rl.networks import BatchRenorm, batch_statistics, renorms_of
from remotely_rl.networks.renorm import D_MAX, EPSILON, MOMENTUM, R_MAX, WARM_UP, StackedLayerNorm

ROWS, FEATURES = 50, 3


def oracle(layer: BatchRenorm, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Equation 3 of Ioffe 2017, feature by feature, for a layer that is warm."""
    running_mean, running_variance = (
        part.numpy().astype(np.float64)[0] for part in (layer.mean, layer.variance)
    )
    weight, bias = (part.detach().numpy()[0] for part in (layer.weight, layer.bias))
    found = np.empty_like(x)
    for f in range(x.shape[1]):
        mean, std = x[:, f].mean(), np.sqrt(x[:, f].var() + EPSILON)
        running = np.sqrt(running_variance[f] + EPSILON)
        r = min(max(std / running, 1 / R_MAX), R_MAX)
        d = min(max((mean - running_mean[f]) / running, -D_MAX), D_MAX)
        found[:, f] = weight[f] * ((x[:, f] - mean) / std * r + d) + bias[f]
    return found


def made(batches: int = WARM_UP) -> BatchRenorm:
    layer = BatchRenorm(1, FEATURES)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0, -1.0]]))
        layer.bias.copy_(torch.tensor([[0.0, 1.0, 3.0]]))
        layer.mean.copy_(torch.tensor([[0.5, 0.0, 100.0]]))
        layer.variance.copy_(torch.tensor([[4.0, 1.0, 1e-4]]))
        layer.batches.fill_(batches)
    return layer


def rows(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(ROWS, FEATURES, generator=generator)
    return drawn * torch.tensor([1.0, 30.0, 1.0]) + torch.tensor([1.0, -3.0, 0.0])


def test_a_batch_is_corrected_towards_the_running_statistics_within_bounds() -> None:
    layer, x = made(), rows()
    expected = oracle(layer, x.numpy().astype(np.float64))
    with batch_statistics([layer]):
        found = layer(x)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-4, atol=1e-4)


def test_a_corrected_batch_within_the_bounds_is_normalized_as_in_use() -> None:
    layer = made()
    with torch.no_grad():
        layer.mean.copy_(rows().mean(0, keepdim=True) + 0.3)
        layer.variance.copy_(rows().var(0, correction=0, keepdim=True) * 2)
    in_use = layer(rows())
    with batch_statistics([layer]):
        torch.testing.assert_close(layer(rows()), in_use)


def test_before_the_warm_up_it_is_batch_normalization() -> None:
    layer, x = made(batches=0), rows()
    with batch_statistics([layer]):
        found = layer(x)
    expected = nn.functional.batch_norm(
        x, None, None, layer.weight[0], layer.bias[0], training=True, eps=EPSILON
    )
    torch.testing.assert_close(found, expected)


def test_running_statistics_follow_the_batch_in_the_context_only() -> None:
    layer, x = made(), rows()
    mean, variance = layer.mean.clone(), layer.variance.clone()
    first = layer(x)
    assert layer.train()(x).equal(first)
    assert layer.eval()(x).equal(first)
    assert layer.mean.equal(mean)

    with batch_statistics([layer]):
        layer(x)

    torch.testing.assert_close(layer.mean, MOMENTUM * mean + (1 - MOMENTUM) * x.mean(0))
    followed = MOMENTUM * variance + (1 - MOMENTUM) * x.var(0, correction=0)
    torch.testing.assert_close(layer.variance, followed)
    assert layer.batches.item() == WARM_UP + 1
    assert not layer(x).equal(first)


def test_gradients_flow_through_the_statistics_of_the_batch() -> None:
    layer = made(batches=0)
    x = rows()[:5].requires_grad_()
    with batch_statistics([layer]):
        # A shift of all rows changes nothing, so the gradient of any function sums to 0.
        (gradient,) = torch.autograd.grad((layer(x) ** 3).sum(), x)
    assert gradient.sum(0).abs().max() < 1e-3
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("batches", [0, WARM_UP])
def test_gradients_are_those_of_the_formula(batches: int) -> None:
    layer, x = made(batches), rows().requires_grad_()
    mean, running = x.mean(0), (layer.variance + EPSILON).sqrt()
    std = (x.var(0, correction=0) + EPSILON).sqrt()
    with torch.no_grad():  # the correction has no gradient
        r = (std / running).clamp(1 / R_MAX, R_MAX) if batches else torch.tensor(1.0)
        d = ((mean - layer.mean) / running).clamp(-D_MAX, D_MAX) if batches else torch.tensor(0.0)
    inputs, slope = (x, layer.weight, layer.bias), rows(1)
    formula = layer.weight * ((x - mean) / std * r + d) + layer.bias
    expected = torch.autograd.grad(formula, inputs, slope)
    with batch_statistics([layer]):
        found = torch.autograd.grad(layer(x), inputs, slope)
    for gradient, of_formula in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, of_formula, rtol=1e-4, atol=1e-4)


def test_members_of_a_stack_have_statistics_of_their_own() -> None:
    stacked, x = BatchRenorm(2, 1, FEATURES), torch.stack([rows(0), 5 * rows(1)])
    alone = [BatchRenorm(1, FEATURES) for _ in range(2)]
    with batch_statistics([stacked, *alone]):
        for _ in range(3):
            found = stacked(x)
            expected = torch.stack([layer(part) for layer, part in zip(alone, x, strict=True)])
            torch.testing.assert_close(found, expected)
    torch.testing.assert_close(stacked(x)[1], alone[1](x[1]))


def test_an_error_ends_the_context() -> None:
    layer = made()
    with pytest.raises(ZeroDivisionError), batch_statistics(renorms_of(nn.Sequential(layer))):
        _ = 1 / 0
    assert not layer.is_learning


def test_layer_norm_of_a_stack_is_that_of_each_member() -> None:
    layer, x = StackedLayerNorm(2, FEATURES), torch.stack([rows(0), rows(1)])
    with torch.no_grad():
        layer.weight.copy_(torch.rand(2, 1, FEATURES))
        layer.bias.copy_(torch.rand(2, 1, FEATURES))
    for member in range(2):
        expected = nn.functional.layer_norm(
            x[member], (FEATURES,), layer.weight[member, 0], layer.bias[member, 0]
        )
        torch.testing.assert_close(layer(x)[member], expected)
