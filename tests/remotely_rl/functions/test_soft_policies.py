"""The two kinds of soft policies: what expectations are taken over, draws, and target entropies."""

import math

import pytest
import torch

from remotely_rl.functions.distributions import ILLEGAL, squashed_sample
from remotely_rl.functions.soft_policies import CATEGORICAL, ENTROPY_OF_DISCRETE, SQUASHED

# Probabilities of 1/4 and 3/4; and an illegal action between two of 1/2.
LOGITS = torch.tensor([[0.0, math.log(3.0), ILLEGAL], [7.0, ILLEGAL, 7.0]])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_a_mean_over_a_categorical_policy_is_the_sum_over_all_actions() -> None:
    outlook = CATEGORICAL.outlook(LOGITS, generator())
    assert outlook.action is None
    of_actions = torch.tensor([[4.0, 8.0, 1e6], [1.0, 1e6, 3.0]])
    assert outlook.mean(of_actions).tolist() == pytest.approx([0.25 * 4 + 0.75 * 8, 2.0])
    entropy = -outlook.mean(outlook.log_prob)
    by_hand = [0.25 * math.log(4) + 0.75 * math.log(4 / 3), math.log(2)]
    assert entropy.tolist() == pytest.approx(by_hand)


def test_a_mean_over_a_squashed_policy_is_that_of_the_action_drawn() -> None:
    policy = torch.tensor([[0.3, -0.2, 0.1, 0.4]])
    outlook = SQUASHED.outlook(policy, generator())
    action, log_prob = squashed_sample(policy, generator())
    assert outlook.action is not None
    assert outlook.action.equal(action)
    assert outlook.log_prob.equal(log_prob)
    assert outlook.mean(torch.tensor([5.0])).tolist() == [5.0]


def test_gradients_pass_an_illegal_action_by() -> None:
    policy = LOGITS.clone().requires_grad_(True)
    outlook = CATEGORICAL.outlook(policy, generator())
    outlook.mean(torch.tensor([1.0, 2.0, 3.0]) - outlook.log_prob).sum().backward()  # type: ignore[no-untyped-call]
    assert policy.grad is not None
    assert policy.grad.isfinite().all()
    assert policy.grad[0, 2] == policy.grad[1, 1] == 0
    # dV / d logit_i = pi_i (q_i - log pi_i - V)
    q = [1 - math.log(0.25), 2 - math.log(0.75)]
    mean = 0.25 * q[0] + 0.75 * q[1]
    by_hand = [0.25 * (q[0] - mean), 0.75 * (q[1] - mean)]
    assert policy.grad[0, :2].tolist() == pytest.approx(by_hand, rel=1e-4)


def test_uniform_draws_are_of_all_legal_actions_whatever_the_policy() -> None:
    drawn = CATEGORICAL.draw_uniformly(LOGITS.repeat(500, 1), generator()).view(-1, 2)
    counts = [torch.bincount(column, minlength=3).tolist() for column in drawn.unbind(1)]
    assert counts[0] == [pytest.approx(250, abs=45), pytest.approx(250, abs=45), 0]
    assert counts[1] == [pytest.approx(250, abs=45), 0, pytest.approx(250, abs=45)]

    drawn = SQUASHED.draw_uniformly(torch.full((1000, 4), 9.0), generator())
    assert drawn.shape == (1000, 2)
    assert drawn.abs().max() < 1
    assert drawn.mean().item() == pytest.approx(0, abs=0.05)


def test_draws_follow_the_policy_and_the_mode_is_its_most_likely_action() -> None:
    drawn = CATEGORICAL.draw(LOGITS[:1].repeat(1000, 1), generator())
    assert torch.bincount(drawn).tolist() == [
        pytest.approx(250, abs=50),
        pytest.approx(750, abs=50),
    ]
    assert CATEGORICAL.mode(LOGITS).tolist() == [1, 0]
    policy = torch.tensor([[0.5, -0.5]])
    assert SQUASHED.draw(policy, generator()).equal(squashed_sample(policy, generator())[0])
    assert SQUASHED.mode(policy).item() == pytest.approx(math.tanh(0.5))


def test_target_entropies_are_minus_the_coordinates_or_a_fraction_of_that_of_the_legal() -> None:
    assert SQUASHED.outlook(torch.zeros(2, 6), generator()).usual_entropy.item() == -3.0
    three_and_two = torch.tensor([[5.0, 0.0, 0.0], [7.0, ILLEGAL, 7.0]])
    usual = CATEGORICAL.outlook(three_and_two, generator()).usual_entropy.item()
    assert usual == pytest.approx(ENTROPY_OF_DISCRETE * (math.log(3) + math.log(2)) / 2)


def test_policies_start_uniform_or_around_zero() -> None:
    assert CATEGORICAL.start(3, -1.0).tolist() == [0, 0, 0]
    assert SQUASHED.start(4, -1.0).shape == (4,)
