"""Tests of Trajectory: shapes, and stacking."""

import dataclasses

import numpy as np
import pytest
import torch

from remotely_rl.experience.trajectory import Trajectory, columns, stack


def trajectory(steps: int, width: int, fill: int = 0) -> Trajectory:
    shape = (steps, width)
    return Trajectory(
        obs=np.full((steps + 1, width, 3), fill, np.uint8),
        action=np.full(shape, fill, np.int64),
        log_prob=np.zeros(shape, np.float32),
        reward=np.zeros(shape, np.float32),
        terminated=np.zeros(shape, np.bool_),
        truncated=np.zeros(shape, np.bool_),
        valid=np.ones(shape, np.bool_),
        begins=np.zeros((steps + 1, width), np.bool_),
        value=np.full((steps + 1, width), fill, np.float32),
        state=np.full((width, 4), fill, np.float32),
        version=np.full(width, fill, np.int64),
    )


def test_trajectories_are_stacked_along_the_environments() -> None:
    both = stack([trajectory(5, 2, fill=1), trajectory(5, 3, fill=2)])
    assert (both.steps, both.width) == (5, 5)
    assert both.obs.shape == (6, 5, 3)
    assert both.action[0].tolist() == [1, 1, 2, 2, 2]
    assert both.value[-1].tolist() == [1, 1, 2, 2, 2]
    assert both.version.tolist() == [1, 1, 2, 2, 2]
    assert both.state[:, 0].tolist() == [1, 1, 2, 2, 2]
    one = trajectory(4, 2)
    assert stack([one]) is one


def test_columns_of_stacked_trajectories_are_views_of_the_parts() -> None:
    parts = [trajectory(5, 2, fill=1), trajectory(5, 3, fill=2)]
    both = stack(parts)
    for part, which in zip(parts, (slice(2), slice(2, None)), strict=True):
        found = columns(both, which)
        for name, want in vars(part).items():
            np.testing.assert_array_equal(getattr(found, name), want)
            assert np.shares_memory(getattr(found, name), getattr(both, name))


def test_observations_on_a_device_are_stacked_as_tensors() -> None:
    parts = [trajectory(5, 2, fill=1), trajectory(5, 3, fill=2)]
    tensors = [dataclasses.replace(part, obs=torch.from_numpy(part.obs)) for part in parts]
    obs = stack(tensors).obs
    assert isinstance(obs, torch.Tensor)
    np.testing.assert_array_equal(obs.numpy(), stack(parts).obs)


def test_trajectories_of_different_lengths_do_not_stack() -> None:
    with pytest.raises(ValueError, match=r"must have the same length, not \[4, 5\]"):
        stack([trajectory(4, 2), trajectory(5, 2)])


@pytest.mark.parametrize("name", ["obs", "value", "begins"])
def test_there_must_be_one_observation_more_than_steps(name: str) -> None:
    good = trajectory(4, 2)
    with pytest.raises(ValueError, match=rf"{name} has shape \(4, 2\); expected \(5, 2\) for 4"):
        Trajectory(**{**vars(good), name: getattr(good, name)[:-1]})


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Trajectory)][2:])
def test_all_arrays_must_have_the_same_width(name: str) -> None:
    good = trajectory(4, 2)
    with pytest.raises(ValueError, match=f"{name} has shape"):
        Trajectory(**{**vars(good), name: getattr(trajectory(4, 3), name)})


def test_actions_may_have_more_axes() -> None:
    good = trajectory(4, 2)
    vector = dataclasses.replace(good, action=np.zeros((4, 2, 6), np.float32))
    both = stack([vector, vector])
    assert (both.steps, both.width) == (4, 4)
    assert both.action.shape == (4, 4, 6)
