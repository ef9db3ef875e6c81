"""The state of a model: its tensors as arrays, and its memory or none."""

import pytest
import torch

from remotely_rl import networks
from tests.remotely_rl import toys


def test_state_travels_as_arrays_and_is_a_copy() -> None:
    one, other = networks.MLP((4,), 2), networks.MLP((4,), 2)
    state = networks.state_of(one)
    for array in state.values():
        array.flags.writeable = False  # as they arrive when the sender shared them
    networks.load_state(other, state)
    obs = torch.randn(3, 4)
    with torch.no_grad():
        one.policy.bias.add_(1.0)
        assert not torch.equal(one(obs)[0], other(obs)[0])
        one.policy.bias.sub_(1.0)
        torch.testing.assert_close(one(obs)[0], other(obs)[0])


def test_the_state_of_another_model_is_refused_by_the_names_that_differ() -> None:
    with pytest.raises(ValueError, match=r"parameters of another model: .*lstm"):
        networks.load_state(toys.network(), networks.state_of(networks.RecurrentMLP((2,), 2, 4)))


def test_a_model_without_a_memory_has_an_empty_one() -> None:
    model = toys.network()
    assert not networks.is_recurrent(model)
    assert networks.initial_state(model, 3).shape == (3, 0)


@torch.no_grad()
def test_a_model_without_a_memory_sees_a_piece_as_so_many_rows() -> None:
    model = toys.network()
    obs = torch.randn(200, 3, 2)  # more rows than are asked about at once
    state, begins = torch.zeros(3, 0), torch.zeros(200, 3).bool()
    policy, value, after = networks.unroll(model, obs, state, begins)
    want_policy, want_value = model(obs.flatten(0, 1))
    torch.testing.assert_close(policy.flatten(0, 1), want_policy)
    torch.testing.assert_close(value.flatten(), want_value)
    assert after is state
