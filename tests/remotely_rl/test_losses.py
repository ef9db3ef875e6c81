"""Losses and their gradients against numbers worked by hand."""

import math

import pytest
import torch
from torch import Tensor

from remotely_rl import losses

ALL = torch.ones(1, dtype=torch.bool)


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (grad,) = torch.autograd.grad(loss, of)
    return [float(x) for x in grad.flatten()]


def test_a_masked_mean_counts_the_valid_rows_alone_whatever_the_others_hold() -> None:
    x = torch.tensor([1.0, math.nan, 3.0], requires_grad=True)
    mean = losses.masked_mean(x, torch.tensor([True, False, True]))
    assert mean.item() == 2.0
    assert gradient(mean, of=x) == [0.5, 0.0, 0.5]


def test_a_masked_mean_of_nothing_is_zero() -> None:
    assert losses.masked_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool)).item() == 0.0


def test_entropy_is_greatest_where_all_actions_are_as_likely() -> None:
    entropy = losses.entropy_of(torch.tensor([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]]))
    assert entropy[0].item() == pytest.approx(math.log(3))
    assert entropy[1] < 0.01


def test_log_prob_is_that_of_the_action_taken() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    assert losses.log_prob_of(logits, torch.tensor([1])).exp().item() == pytest.approx(0.75)


def test_the_policy_gradient_is_advantage_times_one_hot_less_probability() -> None:
    # d(-A log pi(a)) / d logits = -A (1[a] - pi); here pi = (1/4, 3/4), a = 0, A = 2.
    logits = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)
    log_prob = losses.log_prob_of(logits, torch.tensor([0]))
    loss = losses.policy_gradient(log_prob, torch.tensor([2.0]), ALL)
    assert gradient(loss, of=logits) == pytest.approx([-1.5, 1.5])


def test_the_value_gradient_is_the_distance_to_the_target() -> None:
    value = torch.tensor([3.0], requires_grad=True)
    assert gradient(losses.squared_error(value, torch.tensor([1.0]), ALL), of=value) == [2.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"),
    [(1.5, 1.0, 1.2), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8)],
)
def test_the_clipped_surrogate_gives_the_numbers_worked_by_hand(
    ratio: float, advantage: float, gain: float
) -> None:
    log_ratio = torch.tensor([math.log(ratio)])
    loss = losses.clipped_surrogate(log_ratio, torch.tensor([advantage]), ALL, clip=0.2)
    assert -loss.item() == pytest.approx(gain)


def test_past_the_clip_a_winning_row_stops_pulling() -> None:
    log_ratio = torch.tensor([0.5], requires_grad=True)  # e**0.5 = 1.65, beyond 1.2
    loss = losses.clipped_surrogate(log_ratio, torch.ones(1), ALL, clip=0.2)
    assert gradient(loss, of=log_ratio) == [0.0]


def test_where_nothing_has_moved_the_clipped_surrogate_pulls_as_the_policy_gradient_does() -> None:
    advantage = torch.tensor([2.0, -3.0])
    valid = torch.ones(2, dtype=torch.bool)
    log_prob = torch.tensor([-0.3, -1.2], requires_grad=True)
    plain = gradient(losses.policy_gradient(log_prob, advantage, valid), of=log_prob)
    unmoved = log_prob - log_prob.detach()
    clipped = losses.clipped_surrogate(unmoved, advantage, valid, clip=0.2)
    assert gradient(clipped, of=log_prob) == pytest.approx(plain)


def test_standardised_advantages_have_mean_0_and_deviation_1_over_the_valid_rows() -> None:
    torch.manual_seed(0)
    advantage, valid = 5 + 3 * torch.randn(50, 4), torch.rand(50, 4) > 0.3
    scaled = losses.standardised(advantage, valid)
    assert scaled[valid].mean().item() == pytest.approx(0.0, abs=1e-5)
    assert scaled[valid].std(correction=0).item() == pytest.approx(1.0, abs=1e-4)
    assert not scaled[~valid].any()


def test_the_distance_from_a_policy_to_itself_is_zero() -> None:
    assert losses.kl_estimate(torch.zeros(3), torch.ones(3, dtype=torch.bool)).item() == 0.0
    assert losses.kl_estimate(torch.full((3,), 0.3), torch.ones(3, dtype=torch.bool)).item() > 0.0
