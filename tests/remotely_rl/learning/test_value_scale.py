"""The units in which values are learnt."""

import math

import numpy as np
import pytest
import torch

from remotely_rl.learning.learner import RewardScale, ValueScale, restored


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_the_scale_is_the_mean_and_deviation_of_all_targets_together(unit: float) -> None:
    torch.manual_seed(0)
    targets = unit * (30 + 7 * torch.randn(400))
    scale = ValueScale()
    for batch in torch.split(targets, [10, 90, 300]):
        scale.update(batch)
    assert scale.mean == pytest.approx(np.mean(targets.numpy()), rel=1e-5)
    assert scale.std == pytest.approx(np.std(targets.numpy()), rel=1e-3)


def test_old_targets_fade_once_the_horizon_is_reached() -> None:
    scale = ValueScale()
    scale.update(torch.zeros(1000), horizon=100)
    scale.update(torch.ones(100), horizon=100)
    assert scale.mean == pytest.approx(0.5)


def test_equal_targets_leave_a_scale_to_divide_by() -> None:
    scale = ValueScale()
    scale.update(torch.full((10,), 5.0))
    assert 0 < scale.std < 0.01


def test_action_values_are_in_units_of_the_rewards_that_are_not_0() -> None:
    scale = RewardScale()
    assert (scale.mean, scale.std) == (0, 1)
    for rewards in ([0.0, 0.0], [3.0, 0.0], [-4.0]):
        reward = torch.tensor(rewards)
        scale.update(scale.seen(torch.full_like(reward, 100.0), reward))
    assert scale.mean == 0
    assert scale.std == pytest.approx(math.sqrt((9 + 16) / 2))


def test_action_values_of_an_earlier_run_keep_the_unit_of_rewards() -> None:
    scale = restored(RewardScale(), [0.0, 1.0, 0.0])
    for known in (scale, restored(RewardScale(), scale.moments)):  # resumed once more
        known.update(torch.tensor([100.0]))
        assert known.std == 1


@pytest.mark.parametrize("fresh", [ValueScale(), RewardScale()])
def test_a_scale_goes_on_where_a_checkpoint_ended(fresh: ValueScale) -> None:
    saved = type(fresh)()
    saved.update(torch.tensor([3.0, -4.0]))
    assert restored(fresh, list(saved.moments)).moments == saved.moments
