"""Networks with LSTMs: sequences, and where episodes begin."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from remotely_rl import networks


def shared() -> networks.Recurrent:
    return networks.Recurrent(nn.Linear(2, 7), 7, 3, units=5)


def apart() -> networks.RecurrentMLP:
    return networks.RecurrentMLP((2,), 3, units=5)


Remembering = networks.Recurrent | networks.RecurrentMLP


both = pytest.mark.parametrize("make", [shared, apart])


def remembering(make: Callable[[], Remembering]) -> Remembering:
    """A memory whose heads say something: at first they are close to zero."""
    torch.manual_seed(0)
    model = make()
    for head in (model.policy, model.value):
        nn.init.normal_(head.weight)
    return model


def piece(
    model: Remembering, steps: int, width: int, begin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Observations, a memory and where episodes begin, at random."""
    torch.manual_seed(1)
    return (
        torch.randn(steps, width, 2),
        torch.randn_like(model.initial_state(width)),
        torch.rand(steps, width) < begin,
    )


@both
@pytest.mark.parametrize("begin", [0.0, 0.2, 1.0])
@torch.no_grad()
def test_a_piece_seen_at_once_is_the_same_seen_step_by_step(
    make: Callable[[], Remembering], begin: float
) -> None:
    model = remembering(make)
    obs, state, begins = piece(model, 9, 4, begin)
    policy, value, after = networks.unroll(model, obs, state, begins)
    for t in range(9):
        p, v, state = model(obs[t : t + 1], state, begins[t : t + 1])
        torch.testing.assert_close(policy[t], p[0])
        torch.testing.assert_close(value[t], v[0])
    torch.testing.assert_close(after, state)


@both
@torch.no_grad()
def test_each_environment_begins_anew_alone(make: Callable[[], Remembering]) -> None:
    # The slow oracle: each column by itself, cut where its own episodes begin.
    model = remembering(make)
    obs, state, begins = piece(model, 9, 4, 0.3)
    policy, _, after = model(obs, state, begins)
    for b in range(4):
        memory = state[b : b + 1]
        for t in range(9):
            if begins[t, b]:
                memory = model.initial_state(1)
            p, _, memory = model(obs[t : t + 1, b : b + 1], memory, torch.zeros(1, 1).bool())
            torch.testing.assert_close(policy[t, b], p[0, 0])
        torch.testing.assert_close(after[b], memory[0])


@both
def test_nothing_is_remembered_over_the_beginning_of_an_episode(
    make: Callable[[], Remembering],
) -> None:
    model = remembering(make)
    obs, state, _ = piece(model, 6, 2, 0.0)
    begins = torch.zeros(6, 2).bool()
    begins[3, 0] = True
    obs.requires_grad_()
    state.requires_grad_()
    policy, value, _ = model(obs, state, begins)
    said = policy[3:].sum() + value[3:].sum()
    of_obs, of_state = torch.autograd.grad(said, (obs, state))
    assert of_obs[:3, 0].abs().max() == 0
    assert of_state[0].abs().max() == 0
    assert of_obs[:3, 1].abs().min() > 0  # the other one's episode goes on
    assert of_state[1].abs().max() > 0


@both
@torch.no_grad()
def test_what_came_before_matters_to_a_model_with_a_memory(
    make: Callable[[], Remembering],
) -> None:
    model = remembering(make)
    obs, state, begins = piece(model, 6, 2, 0.0)
    policy, value, _ = model(obs, state, begins)
    obs[0] += 1
    other_policy, other_value, _ = model(obs, state, begins)
    assert (policy[5] - other_policy[5]).abs().max() > 1e-6
    assert (value[5] - other_value[5]).abs().max() > 1e-6


def test_of_a_vector_policy_and_value_are_remembered_apart() -> None:
    # Values are large: in an LSTM that both share, their gradient drowns the policy's.
    model = remembering(apart)
    obs, state, begins = piece(model, 6, 2, 0.0)
    _, value, _ = model(obs, state, begins)
    value.sum().backward()
    moved = {name.split("_")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert moved == {"value", "value.weight", "value.bias"}
