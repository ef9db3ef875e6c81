"""The state of a model: parameters as arrays, and recurrent state or none."""

import pytest
import torch

from remotely_rl import networks
from tests.remotely_rl import toys


def test_state_of_and_load_state_copy_parameters() -> None:
    one, other = networks.MLP((4,), 2), networks.MLP((4,), 2)
    state = networks.state_of(one)
    for array in state.values():
        array.flags.writeable = False  # as arrays that arrive in shared memory
    networks.load_state(other, state)
    obs = torch.randn(3, 4)
    with torch.no_grad():
        one.policy.bias.add_(1.0)
        assert not torch.equal(one(obs)[0], other(obs)[0])
        one.policy.bias.sub_(1.0)
        torch.testing.assert_close(one(obs)[0], other(obs)[0])


def test_loading_the_state_of_another_model_names_the_differences() -> None:
    with pytest.raises(ValueError, match=r"parameters of another model: .*lstm"):
        networks.load_state(toys.network(), networks.state_of(networks.RecurrentMLP((2,), 2, 4)))


@torch.no_grad()
def test_a_feedforward_model_unrolls_with_an_empty_state() -> None:
    model = toys.network()
    assert not networks.is_recurrent(model)
    obs = torch.randn(200, 3, 2)  # more rows than a chunk has
    state, begins = networks.initial_state(model, 3), torch.zeros(200, 3).bool()
    assert state.shape == (3, 0)
    policy, value, after = networks.unroll(model, obs, state, begins)
    want_policy, want_value = model(obs.flatten(0, 1))
    torch.testing.assert_close(policy.flatten(0, 1), want_policy)
    torch.testing.assert_close(value.flatten(), want_value)
    assert after is state
