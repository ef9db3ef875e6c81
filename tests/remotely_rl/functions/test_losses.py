"""Losses and their gradients against hand-worked numbers."""

import math

import pytest
import torch
from torch import Tensor

from remotely_rl.functions import losses


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (grad,) = torch.autograd.grad(loss, of)
    return [float(x) for x in grad.flatten()]


def test_the_policy_gradient_is_advantage_times_one_hot_minus_probability() -> None:
    # d(-A log pi(a)) / d logits = -A (1[a] - pi); here a = 0.
    for advantage in (2.0, -2.0):
        logits = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)  # pi = (1/4, 3/4)
        log_prob = logits.log_softmax(-1)[:, 0]
        loss = losses.policy_gradient(log_prob, torch.tensor([advantage]))
        assert loss.item() == pytest.approx(-advantage * math.log(0.25))
        assert gradient(loss, of=logits) == pytest.approx([-0.75 * advantage, 0.75 * advantage])


def test_at_ratio_one_the_clipped_gradient_is_the_policy_gradient() -> None:
    torch.manual_seed(0)
    logits = torch.randn(9, 4, requires_grad=True)
    log_prob = logits.log_softmax(-1)[:, 1]
    advantage = torch.randn(9)
    clipped = losses.clipped_surrogate(log_prob - log_prob.detach(), advantage, clip=0.2)
    plain = losses.policy_gradient(log_prob, advantage)
    ours = torch.autograd.grad(clipped, logits, retain_graph=True)
    torch.testing.assert_close(ours, torch.autograd.grad(plain, logits))


def test_losses_are_means_over_rows() -> None:
    one, advantage = torch.randn(5), torch.randn(5)
    for of in (
        losses.policy_gradient,
        losses.squared_error,
        lambda a, b: losses.clipped_surrogate(a, b, 0.2),
        lambda a, _: losses.kl_estimate(a),
    ):
        twice = of(one.repeat(2), advantage.repeat(2))
        torch.testing.assert_close(of(one, advantage), twice)


def test_the_value_gradient_is_the_error() -> None:
    value = torch.tensor([3.0], requires_grad=True)
    assert gradient(losses.squared_error(value, torch.tensor([1.0])), of=value) == [2.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"),
    [(1.5, 1.0, 1.2), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8)],
)
def test_the_clipped_surrogate_matches_hand_worked_numbers(
    ratio: float, advantage: float, gain: float
) -> None:
    log_ratio = torch.tensor([math.log(ratio)])
    loss = losses.clipped_surrogate(log_ratio, torch.tensor([advantage]), clip=0.2)
    assert -loss.item() == pytest.approx(gain)


def test_clip_fraction_counts_ratios_beyond_the_clip_on_either_side() -> None:
    ratios = torch.tensor([0.7, 0.85, 1.0, 1.15, 1.3, 5.0])
    assert losses.clip_fraction(ratios.log(), clip=0.2).item() == 0.5
    assert losses.clip_fraction(torch.zeros(2), clip=0.0).item() == 0.0


def test_beyond_the_clip_only_a_bad_action_has_a_gradient() -> None:
    for advantage, expected in ((1.0, 0.0), (-1.0, math.exp(0.5))):
        log_ratio = torch.tensor([0.5], requires_grad=True)  # e**0.5 = 1.65, beyond 1.2
        loss = losses.clipped_surrogate(log_ratio, torch.tensor([advantage]), clip=0.2)
        assert gradient(loss, of=log_ratio) == pytest.approx([expected])


def test_the_kl_estimate_is_zero_for_equal_policies_and_positive_otherwise() -> None:
    assert losses.kl_estimate(torch.zeros(3)).item() == 0.0
    for log_ratio in (0.3, -0.3):
        want = math.exp(log_ratio) - 1 - log_ratio
        kl = losses.kl_estimate(torch.full((3,), log_ratio))
        assert kl.item() == pytest.approx(want, abs=1e-6)
        assert want > 0


@pytest.mark.parametrize(
    ("delta", "error", "loss", "slope"),
    [(1.0, 0.5, 0.125, 0.5), (1.0, -3.0, 2.5, -1.0), (2.0, 1.0, 0.5, 1.0), (2.0, 3.0, 4.0, 2.0)],
)
def test_the_huber_loss_is_linear_beyond_delta(
    delta: float, error: float, loss: float, slope: float
) -> None:
    of = torch.tensor([error], requires_grad=True)
    found = losses.huber(of) if delta == 1.0 else losses.huber(of, delta)
    assert found.tolist() == [loss]
    assert gradient(found.sum(), of=of) == [slope]


def test_the_deterministic_policy_gradient_raises_the_values_of_actions() -> None:
    q = torch.tensor([3.0, -1.0], requires_grad=True)
    loss = losses.deterministic_policy_gradient(q)
    assert loss.item() == -1.0
    assert gradient(loss, of=q) == [-0.5, -0.5]


def test_the_soft_value_is_the_lower_critic_plus_the_entropy_term() -> None:
    q = torch.tensor([[3.0, -1.0], [2.0, 5.0]], requires_grad=True)
    value = losses.soft_value(q, torch.tensor([-0.5, 2.0]), torch.tensor(0.2))
    assert value.tolist() == pytest.approx([2.0 + 0.1, -1.0 - 0.4])
    assert gradient(value.sum(), of=q) == [0.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("log_prob", "slope"),
    [
        (0.5, -3.0),  # an entropy of -0.5 is too low: the temperature rises
        (-2.0, 2.0),  # one of 2 is too high: it falls
        (-1.0, 0.0),
    ],
)
def test_the_temperature_rises_if_entropy_is_below_target_else_falls(
    log_prob: float, slope: float
) -> None:
    # d/d log t of t (H - target) is t (H - target); here t = 2 and the target is 1.
    log_temperature = torch.tensor(math.log(2.0), requires_grad=True)
    of_policy = torch.full((3,), log_prob, requires_grad=True)
    loss = losses.temperature_loss(log_temperature, of_policy, target_entropy=1.0)

    assert gradient(loss, of=log_temperature) == [pytest.approx(slope)]
    assert of_policy.grad is None
    assert loss.item() == pytest.approx(slope)


def test_the_temperature_gradient_matches_finite_differences() -> None:
    log_temperature = torch.tensor(-0.3, dtype=torch.float64, requires_grad=True)
    log_prob = torch.tensor([0.4, -1.2, 2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda t: losses.temperature_loss(t, log_prob, target_entropy=-1.5), (log_temperature,)
    )
