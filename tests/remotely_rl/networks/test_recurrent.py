"""Networks with LSTMs: sequences, and resets where episodes begin."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from remotely_rl import networks


def shared() -> networks.Recurrent:
    return networks.Recurrent(nn.Linear(2, 7), 7, 3, units=5)


def separate() -> networks.RecurrentMLP:
    return networks.RecurrentMLP((2,), 3, units=5)


Model = networks.Recurrent | networks.RecurrentMLP


both = pytest.mark.parametrize("make", [shared, separate])


def built(make: Callable[[], Model]) -> Model:
    """A model with random heads, which are close to zero by default."""
    torch.manual_seed(0)
    model = make()
    for head in (model.policy, model.value):
        nn.init.normal_(head.weight)
    return model


def sequence(model: Model, steps: int, width: int, begin: float) -> tuple[Tensor, Tensor, Tensor]:
    """Random observations, state and beginnings of episodes."""
    torch.manual_seed(1)
    return (
        torch.randn(steps, width, 2),
        torch.randn_like(model.initial_state(width)),
        torch.rand(steps, width) < begin,
    )


@both
@pytest.mark.parametrize("begin", [0.0, 0.2, 1.0])
@torch.no_grad()
def test_a_sequence_gives_the_same_outputs_as_single_steps(
    make: Callable[[], Model], begin: float
) -> None:
    model = built(make)
    obs, state, begins = sequence(model, 9, 4, begin)
    policy, value, after = networks.unroll(model, obs, state, begins)
    for t in range(9):
        p, v, state = model(obs[t : t + 1], state, begins[t : t + 1])
        torch.testing.assert_close(policy[t], p[0])
        torch.testing.assert_close(value[t], v[0])
    torch.testing.assert_close(after, state)


@both
@torch.no_grad()
def test_each_environment_resets_its_own_state(make: Callable[[], Model]) -> None:
    # A slow oracle: each column alone, step by step.
    model = built(make)
    obs, state, begins = sequence(model, 9, 4, 0.3)
    policy, _, after = model(obs, state, begins)
    for b in range(4):
        own = state[b : b + 1]
        for t in range(9):
            if begins[t, b]:
                own = model.initial_state(1)
            p, _, own = model(obs[t : t + 1, b : b + 1], own, torch.zeros(1, 1).bool())
            torch.testing.assert_close(policy[t, b], p[0, 0])
        torch.testing.assert_close(after[b], own[0])


@both
def test_no_gradient_crosses_the_beginning_of_an_episode(make: Callable[[], Model]) -> None:
    model = built(make)
    obs, state, _ = sequence(model, 6, 2, 0.0)
    begins = torch.zeros(6, 2).bool()
    begins[3, 0] = True
    obs.requires_grad_()
    state.requires_grad_()
    policy, value, _ = model(obs, state, begins)
    later = policy[3:].sum() + value[3:].sum()
    of_obs, of_state = torch.autograd.grad(later, (obs, state))
    assert of_obs[:3, 0].abs().max() == 0
    assert of_state[0].abs().max() == 0
    assert of_obs[:3, 1].abs().min() > 0  # the other environment's episode continues
    assert of_state[1].abs().max() > 0


def test_policy_and_value_of_vectors_have_separate_lstms() -> None:
    # Values are large: in a shared LSTM their gradient would drown the policy's.
    model = built(separate)
    obs, state, begins = sequence(model, 6, 2, 0.0)
    _, value, _ = model(obs, state, begins)
    value.sum().backward()
    moved = {name.split("_")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert moved == {"value", "value.weight", "value.bias"}
