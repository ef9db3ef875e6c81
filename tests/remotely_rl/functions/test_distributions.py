"""The squashed Gaussian: hand-worked numbers, float64, and torch's own distribution.

`test_action_spaces.py` tests the other distributions, as the action spaces use them.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from remotely_rl.functions.distributions import (
    categorical_mode,
    categorical_sample,
    gaussian_sample,
    perturbed,
    squashed_log_prob,
    squashed_mode,
    squashed_sample,
    standard_normal,
)

# Mean 0 and standard deviation 1: an output of 0 is a log standard deviation of -1.
STANDARD = torch.tensor([[0.0, 1.0]], dtype=torch.float64)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("u", "log_prob"),
    [
        # log N(0) = -0.918939; the slope of tanh there is 1.
        (0.0, -0.918939),
        # log N(1) = -1.418939; the slope is 1 - 0.761594^2 = 0.419974, its log -0.867562.
        (1.0, -1.418939 + 0.867562),
        # log N(-2) = -2.918939; the slope is 1 - 0.964028^2 = 0.070651, its log -2.650005.
        (-2.0, -2.918939 + 2.650005),
    ],
)
def test_squashed_log_prob_matches_hand_worked_numbers(u: float, log_prob: float) -> None:
    found = squashed_log_prob(STANDARD, torch.tensor([[u]]))
    assert found.item() == pytest.approx(log_prob, abs=2e-6)


def test_squashed_log_prob_matches_torch_in_float64() -> None:
    policy, u = numbers(7, 5, 6), 2 * numbers(7, 5, 3, seed=1)
    mean, log_deviation = policy.chunk(2, -1)
    base: Any = Independent(Normal(mean, (log_deviation - 1).clamp(-5, 2).exp()), 1)
    torchs: Any = TransformedDistribution(base, TanhTransform())
    torch.testing.assert_close(squashed_log_prob(policy, u), torchs.log_prob(torch.tanh(u)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_the_gradient_of_a_squashed_sample_is_that_of_autograd(
    rows: int, dtype: torch.dtype
) -> None:
    policy = (3 * numbers(rows, 6)).to(dtype)
    policy[:1, 3:] = torch.tensor([-4.0, 3.0, 3.5])  # at the bounds of log_std, and beyond one
    policy.requires_grad_()
    exact = policy.detach().double().requires_grad_()
    wide = torch.promote_types(dtype, torch.float32)
    noise = standard_normal(torch.empty(rows, 3, dtype=wide), torch.Generator().manual_seed(1))
    mean, raw = exact.chunk(2, -1)
    unsquashed = mean + (raw - 1).clamp(-5, 2).exp() * noise
    of_action, of_log_prob = numbers(rows, 3, seed=2), numbers(rows, seed=3)

    action, log_prob = squashed_sample(policy, torch.Generator().manual_seed(1))
    ((action * of_action).sum() + (log_prob * of_log_prob).sum()).backward()  # type: ignore[no-untyped-call]

    expected = torch.tanh(unsquashed), squashed_log_prob(exact, unsquashed)
    ((expected[0] * of_action).sum() + (expected[1] * of_log_prob).sum()).backward()  # type: ignore[no-untyped-call]
    for found, autograds in zip((action, log_prob), expected, strict=True):
        torch.testing.assert_close(found, autograds.to(wide), rtol=1e-4, atol=1e-4)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    assert exact.grad is not None
    slopes = exact.grad.to(dtype)
    torch.testing.assert_close(policy.grad, slopes, rtol=tolerance, atol=tolerance)


def test_the_squashed_density_integrates_to_one() -> None:
    actions = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    policy = torch.tensor([0.7, 0.4], dtype=torch.float64).expand(len(actions), 2)
    density = squashed_log_prob(policy, torch.atanh(actions).unsqueeze(-1)).exp()
    assert torch.trapezoid(density, actions).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("u", [-60.0, -12.0, 12.0, 60.0])
def test_log_prob_and_gradient_are_exact_where_the_action_rounds_to_its_bound(u: float) -> None:
    # The slope of tanh at u is 4 e^(-2|u|) there, to all digits: its log is 2 log 2 - 2 |u|.
    policy = torch.tensor([[u, 1.0]], requires_grad=True)
    unsquashed = torch.tensor([[u]], requires_grad=True)
    log_prob = squashed_log_prob(policy, unsquashed)
    log_prob.sum().backward()  # type: ignore[no-untyped-call]

    assert torch.tanh(unsquashed).abs().item() == 1.0
    want = -0.5 * math.log(2 * math.pi) - 2 * math.log(2) + 2 * abs(u)
    assert log_prob.item() == pytest.approx(want, rel=1e-6)
    assert unsquashed.grad is not None
    assert unsquashed.grad.item() == pytest.approx(math.copysign(2.0, u))


def test_gradients_match_finite_differences() -> None:
    policy, u = numbers(4, 6).clamp(-2, 2).requires_grad_(), numbers(4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(squashed_log_prob, (policy, u))

    def drawn(policy: Tensor) -> tuple[Tensor, Tensor]:
        return squashed_sample(policy, torch.Generator().manual_seed(3))

    assert torch.autograd.gradcheck(drawn, (policy,))


def test_squashed_samples_are_the_tanh_of_gaussian_samples() -> None:
    policy = torch.tensor([0.5, -0.2, 1.3, 0.8], dtype=torch.float64).expand(200_000, 4)
    action, log_prob = squashed_sample(policy, torch.Generator().manual_seed(0))
    u = torch.atanh(action)

    assert action.shape == (200_000, 2)
    assert action.abs().max() < 1
    torch.testing.assert_close(log_prob, squashed_log_prob(policy, u))
    deviation = torch.tensor([math.exp(0.3), math.exp(-0.2)], dtype=torch.float64)
    torch.testing.assert_close(u.mean(0), policy[0, :2], atol=0.01, rtol=0)
    torch.testing.assert_close(u.std(0), deviation, atol=0.01, rtol=0)


def test_a_gaussian_sample_adds_the_generators_noise_to_the_mean() -> None:
    policy = torch.tensor([0.5, -0.2, 1.3, 0.8], dtype=torch.float64).expand(9, 4)
    drawn = gaussian_sample(policy, torch.Generator().manual_seed(7))
    deviation = torch.tensor([math.exp(0.3), math.exp(-0.2)], dtype=torch.float64)
    torch.testing.assert_close(drawn, policy[:, :2] + deviation * numbers(9, 2, seed=7))


def test_the_categorical_mode_is_the_likeliest_action_of_each_row() -> None:
    assert categorical_mode(torch.eye(4)[[2, 0, 3]]).tolist() == [2, 0, 3]


def test_the_mode_is_the_tanh_of_the_mean() -> None:
    policy = torch.tensor([[0.0, 1.0, 9.0, -9.0]])
    assert squashed_mode(policy).tolist() == [[0.0, pytest.approx(0.761594)]]


def test_noise_and_perturbed_actions_are_clipped() -> None:
    action = torch.tensor([0.0, 0.9, -0.9]).repeat(4_000, 1)
    moved = perturbed(action, 0.2, torch.Generator().manual_seed(0), noise_clip=0.3)

    assert moved[:, 0].abs().max().item() == pytest.approx(0.3)
    share = (moved[:, 0].abs() > 0.3 - 1e-6).double().mean().item()
    assert share == pytest.approx(math.erfc(1.5 / math.sqrt(2)), abs=0.02)
    assert (moved[:, 1].min().item(), moved[:, 1].max().item()) == pytest.approx((0.6, 1.0))
    assert (moved[:, 2].min().item(), moved[:, 2].max().item()) == pytest.approx((-1.0, -0.6))


def test_noise_comes_from_the_generator_in_the_dtype_of_the_actions() -> None:
    action = numbers(4, 2) / 10
    noise = standard_normal(action, torch.Generator().manual_seed(3))
    assert torch.equal(noise, numbers(4, 2, seed=3))
    moved = perturbed(action, 0.2, torch.Generator().manual_seed(3))
    torch.testing.assert_close(moved, (action + 0.2 * noise).clamp(-1, 1))


def test_several_generators_draw_for_their_parts_independently() -> None:
    logits = torch.randn(12, 5)
    policies = torch.randn(12, 6)
    sample: Any
    for sample, of in ((categorical_sample, logits), (gaussian_sample, policies)):
        generators = [torch.Generator().manual_seed(seed) for seed in (1, 2, 3)]
        together = [sample(of, generators), sample(of, generators)]
        alone = [torch.Generator().manual_seed(seed) for seed in (1, 2, 3)]
        for drawn in together:
            parts = [sample(of[4 * i : 4 * i + 4], one) for i, one in enumerate(alone)]
            torch.testing.assert_close(drawn, torch.cat(parts), rtol=0, atol=0)
