"""Quantiles of returns: hand-worked losses, a slow oracle, and the minimum."""

import itertools

import pytest
import torch
from torch import Tensor

from remotely_rl.functions import quantiles


def slow_loss(q: list[float], target: list[float], kappa: float) -> float:
    """The loss of a row, pair by pair, as in algorithm 1."""
    total = 0.0
    for i, estimate in enumerate(q):
        tau = (2 * i + 1) / (2 * len(q))
        for one in target:
            u = one - estimate
            huber = 0.5 * u**2 if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total += abs(tau - (u < 0)) * huber / len(target)
    return total


def loss_of(q: list[float], target: list[float], kappa: float = 1.0) -> float:
    return float(quantiles.quantile_huber(torch.tensor([q]), torch.tensor([target]), kappa))


def test_quantile_levels_are_midpoints() -> None:
    assert quantiles.midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]
    assert quantiles.midpoints(1).tolist() == [0.5]


@pytest.mark.parametrize(
    ("q", "target", "kappa", "expected"),
    [
        ([0.0], [0.5], 1.0, 0.5 * 0.125),  # the median: half of the Huber loss
        ([0.0], [3.0], 1.0, 0.5 * 2.5),
        ([0.0], [-3.0], 1.0, 0.5 * 2.5),
        ([0.0], [3.0], 2.0, 0.5 * 4.0),
        ([1.0], [1.0], 1.0, 0.0),
        ([0.0], [0.5, -3.0], 1.0, 0.5 * (0.125 + 2.5) / 2),
        # Levels 1/4 and 3/4, both quantiles too low: the second costs three times as much.
        ([0.0, 0.0], [2.0], 1.0, 0.25 * 1.5 + 0.75 * 1.5),
        ([0.0, 4.0], [2.0], 1.0, 0.25 * 1.5 + 0.25 * 1.5),
        ([4.0, 0.0], [2.0], 1.0, 0.75 * 1.5 + 0.75 * 1.5),
    ],
)
def test_losses_match_hand_worked_numbers(
    q: list[float], target: list[float], kappa: float, expected: float
) -> None:
    assert loss_of(q, target, kappa) == pytest.approx(expected, abs=1e-7)
    assert slow_loss(q, target, kappa) == pytest.approx(expected)


@pytest.mark.parametrize("kappa", [0.5, 1.0, 3.0])
def test_losses_match_the_sum_over_all_pairs(kappa: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for scale, (count, targets) in itertools.product((0.1, 1.0, 50.0), ((1, 7), (7, 1), (9, 12))):
        q = scale * torch.randn(4, count, generator=generator, dtype=torch.float64)
        target = scale * torch.randn(4, targets, generator=generator, dtype=torch.float64)
        found = quantiles.quantile_huber(q, target, kappa)
        pairs = zip(q.tolist(), target.tolist(), strict=True)
        assert found.tolist() == pytest.approx([slow_loss(*row, kappa) for row in pairs])


def test_leading_dimensions_are_independent() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, 5, generator=generator)
    target, other = torch.randn(2, 3, 4, generator=generator), q.flip(0)
    found = quantiles.quantile_huber(q, target), quantiles.wasserstein(q, other)
    flat = (
        quantiles.quantile_huber(q.flatten(0, 1), target.flatten(0, 1)),
        quantiles.wasserstein(q.flatten(0, 1), other.flatten(0, 1)),
    )
    for one, alone in zip(found, flat, strict=True):
        torch.testing.assert_close(one, alone.view(2, 3))


def test_targets_equal_to_quantiles_are_counted_once() -> None:
    for q, target in (([0.0, 1.0, 2.0], [0.0, 1.0, 2.0]), ([1.0, 1.0], [0.0, 1.0, 2.0, 2.0])):
        assert loss_of(q, target) == pytest.approx(slow_loss(q, target, 1.0))


def test_close_large_returns_keep_their_precision() -> None:
    near = torch.tensor([[1000.0, 1000.25]])
    found = quantiles.quantile_huber(near, near + 0.25)
    expected = slow_loss(near[0].tolist(), (near[0] + 0.25).tolist(), 1.0)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert found.dtype == torch.float32


def test_the_gradient_matches_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    target = 2 * torch.randn(3, 8, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: quantiles.quantile_huber(x, target), (q,))


def test_the_gradient_of_a_distant_quantile_is_its_level() -> None:
    q = torch.tensor([[-50.0, 50.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(quantiles.quantile_huber(q, torch.randn(1, 9)).sum(), q)
    assert gradient[0].tolist() == pytest.approx([-0.25, 0.25])


def test_the_quantiles_of_the_targets_minimize_the_loss() -> None:
    target = torch.arange(1.0, 101.0).expand(1, 100)  # the quantile at tau is 100 tau
    q = torch.full((1, 4), 30.0, requires_grad=True)
    optimizer = torch.optim.SGD([q], lr=20.0)
    for _ in range(300):
        optimizer.zero_grad()
        quantiles.quantile_huber(q, target).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert q[0].tolist() == pytest.approx([12.5, 37.5, 62.5, 87.5], abs=1.0)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ([0.0, 1.0], [1.0, 0.0], 0.0),  # the same distribution
        ([0.0, 0.0], [1.0, 3.0], 2.0),
        ([5.0, 1.0], [0.0, 4.0], 1.0),
    ],
)
def test_the_wasserstein_distance_matches_hand_worked_numbers(
    one: list[float], other: list[float], distance: float
) -> None:
    def row(numbers: list[float]) -> Tensor:
        return torch.tensor([numbers])

    assert quantiles.wasserstein(row(one), row(other)).tolist() == [distance]
