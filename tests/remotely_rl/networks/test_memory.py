"""Models without a memory, called as those with one are."""

import torch

from remotely_rl import networks
from tests.remotely_rl import toys


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
