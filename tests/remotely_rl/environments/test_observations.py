"""Observations of any space as one array."""

import gymnasium
import numpy as np
import pytest

from remotely_rl import environments
from remotely_rl.environments import Environments
from tests.remotely_rl import toys


def play(envs: Environments, steps: int) -> list[environments.Step]:
    """`steps` steps of no-ops.  The observation of row t is that of step t - 1."""
    return [envs.step(np.zeros(envs.num_envs, np.int64)) for _ in range(steps)]


def test_images_come_with_their_channels_first_and_as_bytes() -> None:
    envs = environments.make(toys.Picture, 2)
    assert envs.observation_shape == (3, 8, 9)
    assert envs.dtype == np.uint8
    envs.reset(1)
    (row,) = play(envs, 1)
    assert row.obs.shape == (2, 3, 8, 9)
    assert row.obs.dtype == np.uint8
    assert row.obs[:, 1].min() == 1
    assert row.obs[:, 0].max() == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    ("space", "shape"),
    [
        ((84, 84, 12), (12, 84, 84)),  # four frames in colour
        ((12, 84, 84), (12, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((4, 84, 84), (4, 84, 84)),
        ((8, 20, 8), (8, 20, 8)),  # either: taken as they are
    ],
)
def test_the_smaller_of_the_first_and_the_last_axis_of_an_image_are_its_channels(
    space: tuple[int, int, int], shape: tuple[int, int, int], dtype: type[np.generic]
) -> None:
    envs = environments.make(lambda: toys.Blank(gymnasium.spaces.Box(0, 1, space, dtype)), 2)
    assert envs.observation_shape == shape
    assert envs.reset(1).shape == (2, *shape)
    assert play(envs, 1)[0].obs.dtype == envs.dtype == dtype


@pytest.mark.parametrize(
    ("env_id", "shape"), [("CartPole-v1", (4,)), ("FrozenLake-v1", (16,)), ("Blackjack-v1", (45,))]
)
def test_any_space_of_observations_becomes_one_array(env_id: str, shape: tuple[int, ...]) -> None:
    envs = environments.make(env_id, 2)
    assert envs.observation_shape == shape
    assert envs.reset(1).shape == (2, *shape)
    assert play(envs, 1)[0].obs.dtype == envs.dtype == np.float32
    envs.close()
