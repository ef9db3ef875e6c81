"""Action values: hand-worked numbers, exploration, and illegal actions."""

import pytest
import torch

from remotely_rl.functions import q_learning
from remotely_rl.functions.distributions import ILLEGAL


def test_dueling_values_have_the_state_value_as_mean() -> None:
    policy, value = torch.tensor([[1.0, -1.0, 3.0]]), torch.tensor([2.0])

    q = q_learning.q_values(policy, value, is_dueling=True)

    assert q.tolist() == [[2.0, 0.0, 4.0]]
    assert torch.equal(q_learning.q_values(policy, value, is_dueling=False), policy)
    assert torch.equal(q_learning.q_values(policy + 5, value, is_dueling=True), q)
    both = q_learning.q_values(policy.expand(2, 5, 3), value.expand(2, 5), is_dueling=True)
    assert torch.equal(both, q.expand(2, 5, 3))


def test_the_dueling_mean_is_over_legal_actions() -> None:
    policy = torch.tensor([[1.0, ILLEGAL, 3.0], [ILLEGAL, ILLEGAL, -5.0]])

    q = q_learning.q_values(policy, torch.tensor([10.0, 7.0]), is_dueling=True)

    assert q.tolist() == [[9, ILLEGAL, 11], [ILLEGAL, ILLEGAL, 7]]


def test_no_legal_action_gives_no_nan() -> None:
    advantage, none = torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool)

    assert q_learning.dueling(torch.ones(1, 1), advantage, none).tolist() == [[2.0, 2.0]]


def test_dueling_applies_to_each_atom() -> None:
    value = torch.tensor([[[1.0, 10.0]]])
    advantage = torch.tensor([[[2.0, 4.0], [0.0, 8.0], [9.0, 9.0]]])
    legal = torch.tensor([[[True], [True], [False]]])

    logits = q_learning.dueling(value, advantage, legal, dim=1)

    assert logits[0, :2].tolist() == [[2.0, 8.0], [0.0, 12.0]]


def test_an_n_step_target_is_the_reward_plus_the_discounted_bootstrap() -> None:
    reward, discount = torch.tensor([5.23, 2.8]), torch.tensor([0.729, 0.0])

    target = q_learning.n_step_target(reward, discount, torch.tensor([10.0, 1e9]))

    assert target.tolist() == pytest.approx([12.52, 2.8])


def test_taken_selects_the_action_of_each_row() -> None:
    values = torch.arange(12.0).view(2, 3, 2)

    assert q_learning.taken(values[..., 0], torch.tensor([2, 0])).tolist() == [4.0, 6.0]
    assert q_learning.taken(values, torch.tensor([2, 0])).tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_epsilon_greedy_explores_with_probability_epsilon() -> None:
    q = torch.tensor([[0.0, 1.0, 0.5]]).repeat(30_000, 1)
    random = torch.Generator().manual_seed(0)

    taken = q_learning.epsilon_greedy(q, torch.full((30_000,), 0.3), random)

    share = float((taken == 1).float().mean())
    assert share == pytest.approx(0.7 + 0.3 / 3, abs=0.01)
    never = q_learning.epsilon_greedy(q, torch.zeros(30_000), random)
    assert bool((never == 1).all())


def test_epsilon_greedy_chooses_the_best_action_of_each_row_and_repeats_with_its_generator() -> (
    None
):
    q = torch.eye(4)[[2, 0, 3, 1]].repeat(50, 1)
    masked = torch.where(torch.tensor([True, True, False, True]), q, ILLEGAL)

    greedy = q_learning.epsilon_greedy(q, torch.zeros(200), torch.Generator())
    assert greedy.tolist() == [2, 0, 3, 1] * 50
    half = torch.full((200,), 0.5)
    for values in (q, masked):
        one, same, other = (
            q_learning.epsilon_greedy(values, half, torch.Generator().manual_seed(seed))
            for seed in (1, 1, 2)
        )
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


def test_epsilon_greedy_never_chooses_an_illegal_action() -> None:
    q = torch.tensor([[9.0, ILLEGAL, 11.0], [ILLEGAL, ILLEGAL, -7.0]])
    generator = torch.Generator().manual_seed(0)

    random, greedy = (
        [q_learning.epsilon_greedy(q, torch.full((2,), chance), generator) for _ in range(50)]
        for chance in (1.0, 0.0)
    )

    assert {int(drawn[0]) for drawn in random} == {0, 2}
    assert {int(drawn[1]) for drawn in random} == {2}
    assert {tuple(drawn.tolist()) for drawn in greedy} == {(2, 2)}


def test_epsilon_falls_from_one_and_stays_at_its_final_value() -> None:
    final = torch.tensor([0.01, 0.5])

    for before in (-100, 0):
        assert q_learning.epsilon(final, before, 100).tolist() == [1.0, 1.0]
    assert q_learning.epsilon(final, 50, 100).tolist() == pytest.approx([0.505, 0.75])
    torch.testing.assert_close(q_learning.epsilon(final, 1000, 100), final)


def test_epsilons_are_spread_as_in_ape_x() -> None:
    ends = q_learning.spread(0.4, 7.0, 8).tolist()

    assert ends[0] == pytest.approx(0.4)
    assert ends[1] == pytest.approx(0.4**2)
    assert ends[-1] == pytest.approx(0.4**8)
    assert q_learning.spread(0.4, 7.0, 1).tolist() == pytest.approx([0.4])
    assert q_learning.spread(0.4, 7.0, 2).tolist() == pytest.approx([0.4, 0.4**8])
    assert q_learning.spread(0.1, 0.0, 3).tolist() == pytest.approx([0.1] * 3)
    assert q_learning.spread(0.0, 7.0, 3).tolist() == [0.0] * 3
