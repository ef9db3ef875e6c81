"""Trajectories keep their shapes, and their environments in order."""

import numpy as np
import pytest

from remotely_rl.trajectory import Trajectory, stack


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
        version=np.full(width, fill, np.int64),
    )


def test_stacking_puts_environments_side_by_side_and_leaves_time_alone() -> None:
    both = stack([trajectory(5, 2, fill=1), trajectory(5, 3, fill=2)])
    assert (both.steps, both.width) == (5, 5)
    assert both.obs.shape == (6, 5, 3)
    assert both.action[0].tolist() == [1, 1, 2, 2, 2]
    assert both.version.tolist() == [1, 1, 2, 2, 2]


def test_one_trajectory_is_its_own_stack() -> None:
    one = trajectory(4, 2)
    assert stack([one]) is one


def test_trajectories_of_different_lengths_do_not_stack() -> None:
    with pytest.raises(ValueError, match=r"one length can be stacked, got \[4, 5\]"):
        stack([trajectory(4, 2), trajectory(5, 2)])


def test_there_is_one_observation_more_than_there_are_steps() -> None:
    good = trajectory(4, 2)
    with pytest.raises(ValueError, match="obs has shape"):
        Trajectory(**{**vars(good), "obs": good.obs[:-1]})


def test_what_was_gathered_step_by_step_is_stacked_in_time() -> None:
    def row(t: int) -> list[np.ndarray]:
        column = np.array([t, t])
        no, yes = np.zeros(2, np.bool_), np.ones(2, np.bool_)
        return [column, column / 2, column * 10, no, no, yes]

    gathered = Trajectory.of([np.full((2, 3), t) for t in range(4)], [row(t) for t in range(3)], 9)
    assert gathered.obs[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert gathered.action[:, 1].tolist() == [0, 1, 2]
    assert gathered.reward[:, 1].tolist() == [0, 10, 20]
    assert gathered.valid.all()
    assert gathered.version.tolist() == [9, 9]
