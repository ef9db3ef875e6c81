"""The units in which values are learnt."""

import numpy as np
import pytest
import torch

from remotely_rl.learning.learner import ValueScale


def test_the_scale_is_the_mean_and_deviation_of_all_targets_together() -> None:
    torch.manual_seed(0)
    targets = 30 + 7 * torch.randn(400)
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
