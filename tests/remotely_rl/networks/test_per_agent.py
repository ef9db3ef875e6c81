"""PerAgent: a separate model for each agent in one module."""

from typing import Any

import numpy as np
import pytest
import torch

from remotely_rl import networks
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.networks import PerAgent, build
from remotely_rl.networks.architecture import Architecture

VECTOR = ObservationLeaf((2,), np.dtype(np.float32))
SPEC = {"observation": VECTOR, "agent_index": ObservationLeaf((), np.dtype(np.int64), (3,), (0,))}
ROWS = torch.tensor([2, 0, 1, 0])


def built(units: int = 0, spec: Any = SPEC) -> Any:
    torch.manual_seed(1)
    return build(None, spec, 4, Architecture(lstm=units))


def observed(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 2, generator=torch.Generator().manual_seed(2))


def test_each_row_gets_the_outputs_of_its_agents_model() -> None:
    model, obs = built(), observed(4)
    assert isinstance(model, PerAgent)
    policy, value = model({"observation": obs, "agent_index": ROWS})
    for i, agent in enumerate(ROWS):
        own_policy, own_value = model.models[agent](obs[i : i + 1])
        assert torch.allclose(policy[i], own_policy[0])
        assert torch.allclose(value[i], own_value[0])


def test_the_models_of_agents_start_with_different_weights() -> None:
    first, *others = (torch.cat([p.flatten() for p in one.parameters()]) for one in built().models)
    assert all(not torch.equal(first, other) for other in others)


def test_gradients_reach_only_the_models_of_the_rows_agents() -> None:
    model = built()
    obs = {"observation": observed(2), "agent_index": torch.tensor([1, 1])}
    sum(part.sum() for part in model(obs)).backward()
    moved = [
        any(p.grad is not None and p.grad.any() for p in one.parameters()) for one in model.models
    ]
    assert moved == [False, True, False]


def test_recurrent_models_keep_the_state_of_their_agent() -> None:
    model, obs = built(units=4), observed(5, 4)
    begins = torch.zeros(5, 4, dtype=torch.bool)
    begins[0], begins[3, 1] = True, True
    state = networks.initial_state(model, 4)
    agent = ROWS.expand(5, 4)
    policy, value, after = model({"observation": obs, "agent_index": agent}, state, begins)
    for i, index in enumerate(ROWS):
        one = slice(i, i + 1)
        own = model.models[index](obs[:, one], state[one], begins[:, one])
        for found, expected in zip((policy[:, one], value[:, one], after[one]), own, strict=True):
            assert torch.allclose(found, expected)


def test_all_models_have_the_same_observation_statistics() -> None:
    model = built()
    obs = {"observation": 5 + observed(100), "agent_index": torch.zeros(100, dtype=torch.int64)}
    networks.update_normalizers(model, obs, every=1)
    means = [part.mean for name, part in model.named_modules() if name.endswith("normalizer")]
    assert len(means) == 3
    assert all(torch.allclose(mean, obs["observation"].mean(0)) for mean in means)


def test_masks_apply_to_per_agent_models() -> None:
    mask = ObservationLeaf((4,), np.dtype(np.bool_))
    model = built(spec={"observation": SPEC, "action_mask": mask})
    legal = torch.tensor([[True, False, True, True]] * 4)
    obs = {"observation": {"observation": observed(4), "agent_index": ROWS}, "action_mask": legal}
    policy, _ = model(obs)
    assert (policy[:, 1] < -1e6).all()
    assert (policy[:, 0].abs() < 10).all()


@pytest.mark.parametrize("key", ["agent", "target"])
def test_other_dict_observations_have_a_single_model(key: str) -> None:
    model = build(None, {"observation": VECTOR, key: SPEC["agent_index"]}, 4)
    assert not isinstance(model, PerAgent)
