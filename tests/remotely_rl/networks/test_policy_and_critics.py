"""The networks of SAC and TD3: stacked critics against single ones, gradients, nested inputs."""

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from remotely_rl.environments.observations import ObservationLeaf, Observations
from remotely_rl.networks import Architecture, Critics, PolicyNetwork, frozen
from remotely_rl.networks.policy_and_critics import StackedLinear

VECTOR = ObservationLeaf((3,), np.dtype(np.float32))
CASE = gymnasium.spaces.Dict(
    {
        "image": gymnasium.spaces.Box(0, 255, (24, 24, 1), np.uint8),
        "speed": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
        "gear": gymnasium.spaces.Discrete(5),
    }
)


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_stacked_layer_computes_each_member(outputs: int) -> None:
    stack, x = StackedLinear(2, 3, outputs), torch.randn(2, 5, 3)
    for member in range(2):
        single = nn.Linear(3, outputs)
        with torch.no_grad():
            single.weight.copy_(stack.weight[member].T)
            single.bias.copy_(stack.bias[member, 0])
        torch.testing.assert_close(stack(x)[member], single(x[member]))


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_stacked_layer_has_the_gradients_of_a_product(outputs: int) -> None:
    stack, x = StackedLinear(2, 3, outputs).double(), torch.randn(2, 5, 3, dtype=torch.float64)
    inputs = x.requires_grad_(), stack.weight, stack.bias
    slope = torch.randn(2, 5, outputs, dtype=torch.float64)
    found = torch.autograd.grad(stack(x), inputs, slope)
    for gradient, expected in zip(
        found, torch.autograd.grad(x @ stack.weight + stack.bias, inputs, slope), strict=True
    ):
        torch.testing.assert_close(gradient, expected)
    with frozen([stack.weight, stack.bias]):
        assert torch.autograd.grad(stack(x), x, slope)[0].equal(found[0])


def test_a_stacked_layer_is_initialized_like_single_ones() -> None:
    torch.manual_seed(0)
    stack, single = StackedLinear(2, 100, 400), nn.Linear(100, 400)
    torch.testing.assert_close(stack.weight.std(), single.weight.std(), rtol=0.02, atol=0)
    assert stack.weight.abs().max() <= 0.1
    assert not torch.equal(stack.weight[0], stack.weight[1])


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_the_first_critic_alone_has_the_values_that_it_has_beside_the_other(norm: str) -> None:
    critics = Critics(VECTOR, 2, Architecture((8, 8), norm=norm))
    obs, action = torch.randn(6, 3), torch.randn(6, 2)
    alone = critics(obs, action, 1)
    assert alone.shape == (1, 6)
    torch.testing.assert_close(alone[0], critics(obs, action)[0])


def test_the_critics_are_independent_functions_of_observation_and_action() -> None:
    critics = Critics(VECTOR, 2, Architecture((8, 8)))
    obs, action = torch.randn(6, 3), torch.randn(6, 2)
    before = critics(obs, action)
    assert before.shape == (2, 6)
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter[1] = 0.0
    after = critics(obs, action)
    assert torch.equal(after[0], before[0])
    assert after[1].tolist() == [0.0] * 6
    assert not torch.equal(critics(obs, action + 1)[0], before[0])


def test_frozen_critics_pass_gradients_only_to_the_action() -> None:
    critics = Critics(VECTOR, 2, Architecture((8, 8)))
    action = torch.randn(6, 2, requires_grad=True)
    with frozen(list(critics.parameters())):
        value = critics(torch.randn(6, 3), action).sum()
    value.backward()
    assert action.grad is not None
    assert action.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in critics.parameters())
    critics(torch.randn(6, 3), action).sum().backward()
    assert all(parameter.grad is not None for parameter in critics.parameters())


def test_policy_and_critics_encode_nested_observations() -> None:
    seen = Observations(CASE)
    obs = {
        "image": torch.zeros(2, 1, 24, 24, dtype=torch.uint8),
        "speed": torch.zeros(2, 2),
        "gear": torch.tensor([0, 4]),
    }
    policy, value = PolicyNetwork(seen.spec, 4, Architecture((16, 16)))(obs)
    assert (policy.shape, value.tolist()) == ((2, 4), [0.0, 0.0])
    assert Critics(seen.spec, 2, Architecture((16, 16)))(obs, torch.zeros(2, 2)).shape == (2, 2)
