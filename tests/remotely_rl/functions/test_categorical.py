"""Categorical distributions of returns: hand-worked projections, a slow oracle, conserved mass."""

import pytest
import torch
from torch import Tensor

from remotely_rl.functions import categorical

ATOMS = categorical.atoms_within(10.0, 51)
UNIFORM = torch.full((1, 51), 1 / 51)


def all_on(atom: int) -> Tensor:
    return torch.eye(51)[atom : atom + 1]


def project(probability: Tensor, reward: float, discount: float) -> Tensor:
    numbers = torch.tensor([reward]), torch.tensor([discount])
    return categorical.project(probability, *numbers, ATOMS)[0]


def test_atoms_are_equally_spaced_between_the_bounds() -> None:
    assert ATOMS.tolist() == pytest.approx([-10 + 0.4 * i for i in range(51)], abs=1e-5)


@pytest.mark.parametrize(
    ("probability", "reward", "discount", "expected"),
    [
        (all_on(25), 1.0, 0.99, {27: 0.5, 28: 0.5}),
        (all_on(25), 0.3, 0.0, {25: 0.25, 26: 0.75}),
        (UNIFORM, 5.23, 0.0, {38: 0.925, 39: 0.075}),
        (all_on(50), 5.0, 0.99, {50: 1.0}),
        (all_on(0), -5.0, 0.99, {0: 1.0}),
    ],
    ids=["between two", "terminated", "n steps", "beyond the top", "beyond the bottom"],
)
def test_projections_match_hand_worked_numbers(
    probability: Tensor, reward: float, discount: float, expected: dict[int, float]
) -> None:
    projected = project(probability, reward, discount)

    found = {i: mass for i, mass in enumerate(projected.tolist()) if mass > 1e-5}
    assert found == pytest.approx(expected, abs=1e-4)


def test_uniform_distributions_project_to_known_numbers() -> None:
    shrunk = project(UNIFORM, 0.0, 0.99)
    assert shrunk[[0, 1, 25]].tolist() == pytest.approx([0.014706, 0.019804, 0.02], abs=2e-4)
    assert float((shrunk * ATOMS).sum()) == pytest.approx(0.0, abs=1e-5)

    moved = project(UNIFORM, 1.0, 0.99)
    assert float((moved * ATOMS).sum()) == pytest.approx(0.970353, abs=1e-5)


def test_a_return_that_equals_an_atom_loses_no_mass() -> None:
    for atom in range(51):
        projected = project(all_on(25), float(ATOMS[atom]), 1.0)
        assert float(projected[atom]) == pytest.approx(1.0, abs=1e-4)
        assert float(projected.sum()) == pytest.approx(1.0)


def test_projected_mass_is_never_negative() -> None:
    for bound in range(1, 1001):  # in float32 the place of the last atom is rounded up for 58
        atoms = categorical.atoms_within(float(bound), 51)
        beyond = torch.tensor([2.0 * bound, -2.0 * bound]), torch.ones(2)
        projected = categorical.project(all_on(50).repeat(2, 1), *beyond, atoms)
        assert bool((projected >= 0).all()), bound
        assert projected.sum(-1).tolist() == [1, 1]


def test_projections_match_the_sum_over_all_pairs_of_atoms() -> None:
    torch.manual_seed(0)
    probability = torch.randn(64, 51).softmax(-1)
    reward, discount = 8 * torch.randn(64), torch.rand(64)

    projected = categorical.project(probability, reward, discount, ATOMS)

    width = float(ATOMS[1] - ATOMS[0])
    moved = (reward[:, None] + discount[:, None] * ATOMS).clamp(-10, 10)
    distance = (moved[:, None, :] - ATOMS[None, :, None]).abs() / width
    slow = (probability[:, None, :] * (1 - distance).clamp(min=0)).sum(-1)
    torch.testing.assert_close(projected, slow, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(projected.sum(-1), torch.ones(64))
    assert bool((projected >= 0).all())


def test_expected_returns_the_mean() -> None:
    logits = torch.full((2, 3, 51), -1e9)
    logits[..., [20, 40]] = 0.0  # -2 and 6

    means = categorical.expected(logits, ATOMS)
    assert means.shape == (2, 3)
    assert means.flatten().tolist() == pytest.approx([2.0] * 6, abs=1e-5)


def test_kl_is_zero_for_equal_distributions_and_positive_otherwise() -> None:
    torch.manual_seed(1)
    logits, other = torch.randn(5, 51), torch.randn(5, 51)

    same = categorical.kl_divergence(logits, logits.softmax(-1))
    torch.testing.assert_close(same, torch.zeros(5), atol=1e-5, rtol=0)
    assert bool((categorical.kl_divergence(logits, other.softmax(-1)) > 0.1).all())
    on_one = categorical.kl_divergence(torch.zeros(1, 51), all_on(7))
    assert float(on_one) == pytest.approx(3.931826, abs=1e-5)  # log 51


def test_the_cross_entropy_gradient_is_the_difference_of_the_distributions() -> None:
    torch.manual_seed(2)
    logits, target = torch.randn(3, 51, requires_grad=True), torch.randn(3, 51).softmax(-1)

    (gradient,) = torch.autograd.grad(categorical.cross_entropy(logits, target).sum(), logits)

    torch.testing.assert_close(gradient, logits.softmax(-1) - target)
