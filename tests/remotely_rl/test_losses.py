"""Losses and their gradients against numbers worked by hand."""

import math

import pytest
import torch
from torch import Tensor

from remotely_rl import losses


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    (grad,) = torch.autograd.grad(loss, of)
    return [float(x) for x in grad.flatten()]


def test_entropy_is_greatest_where_all_actions_are_as_likely() -> None:
    entropy = losses.entropy_of(torch.tensor([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]]))
    assert entropy[0].item() == pytest.approx(math.log(3))
    assert entropy[1] < 0.01


def test_log_prob_is_that_of_the_action_taken() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    assert losses.log_prob_of(logits, torch.tensor([1])).exp().item() == pytest.approx(0.75)


def test_at_first_the_gradient_is_advantage_times_one_hot_less_probability() -> None:
    # d(-A log pi(a)) / d logits = -A (1[a] - pi); here pi = (1/4, 3/4), a = 0, A = 2.
    logits = torch.tensor([[0.0, math.log(3.0)]], requires_grad=True)
    log_prob = losses.log_prob_of(logits, torch.tensor([0]))
    loss = losses.clipped_surrogate(log_prob - log_prob.detach(), torch.tensor([2.0]), clip=0.2)
    assert gradient(loss, of=logits) == pytest.approx([-1.5, 1.5])


def test_the_value_gradient_is_the_distance_to_the_target() -> None:
    value = torch.tensor([3.0], requires_grad=True)
    assert gradient(losses.squared_error(value, torch.tensor([1.0])), of=value) == [2.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"),
    [(1.5, 1.0, 1.2), (0.5, 1.0, 0.5), (1.5, -1.0, -1.5), (0.5, -1.0, -0.8)],
)
def test_the_clipped_surrogate_gives_the_numbers_worked_by_hand(
    ratio: float, advantage: float, gain: float
) -> None:
    log_ratio = torch.tensor([math.log(ratio)])
    loss = losses.clipped_surrogate(log_ratio, torch.tensor([advantage]), clip=0.2)
    assert -loss.item() == pytest.approx(gain)


def test_past_the_clip_a_winning_row_stops_pulling() -> None:
    log_ratio = torch.tensor([0.5], requires_grad=True)  # e**0.5 = 1.65, beyond 1.2
    loss = losses.clipped_surrogate(log_ratio, torch.ones(1), clip=0.2)
    assert gradient(loss, of=log_ratio) == [0.0]


def test_the_distance_from_a_policy_to_itself_is_zero() -> None:
    assert losses.kl_estimate(torch.zeros(3)).item() == 0.0
    assert losses.kl_estimate(torch.full((3,), 0.3)).item() > 0.0
