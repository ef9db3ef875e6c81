"""Observations of any space as trees of arrays."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from remotely_rl import environments, trees
from remotely_rl.environments.observations import ObservationLeaf, Observations
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys
from tests.remotely_rl.toys import play


def test_images_are_channels_first_bytes() -> None:
    envs = environments.make(toys.Picture, 2)
    assert envs.spec == ObservationLeaf((3, 8, 9), np.dtype(np.uint8))
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
        ((8, 20, 8), (8, 20, 8)),  # ambiguous: unchanged
    ],
)
def test_the_smaller_of_the_first_and_last_axis_is_the_channels(
    space: tuple[int, int, int], shape: tuple[int, int, int], dtype: type[np.generic]
) -> None:
    envs = environments.make(lambda: toys.Blank(gymnasium.spaces.Box(0, 1, space, dtype)), 2)
    assert envs.spec == ObservationLeaf(shape, np.dtype(dtype))
    assert envs.reset(1).shape == (2, *shape)
    assert play(envs, 1)[0].obs.dtype == dtype


INT8, INT64, FLOAT = np.dtype(np.int8), np.dtype(np.int64), np.dtype(np.float32)

SPACES: list[tuple[gymnasium.Space[Any], Any]] = [
    (spaces.Box(-1, 1, (3,), np.float64), ObservationLeaf((3,), FLOAT)),
    (spaces.Box(-9, 9, (2, 2), np.int16), ObservationLeaf((2, 2), FLOAT)),
    (spaces.Box(0, 255, (), np.uint8), ObservationLeaf((1,), np.dtype(np.uint8))),
    (spaces.Dict(x=spaces.Box(-1, 1, ())), {"x": ObservationLeaf((1,), FLOAT)}),
    (spaces.Discrete(5, start=2), ObservationLeaf((), INT64, (5,), (2,))),
    (spaces.MultiDiscrete([3, 4]), ObservationLeaf((2,), INT64, (3, 4), (0, 0))),
    (spaces.MultiBinary([2, 3]), ObservationLeaf((2, 3), INT8)),
    (
        spaces.Dict({"image": spaces.Box(0, 255, (8, 9, 3), np.uint8), "goal": spaces.Discrete(4)}),
        {
            "image": ObservationLeaf((3, 8, 9), np.dtype(np.uint8)),
            "goal": ObservationLeaf((), INT64, (4,), (0,)),
        },
    ),
    (
        spaces.Tuple([spaces.Discrete(2), spaces.Dict(x=spaces.Box(0, 1, (1,)))]),
        (ObservationLeaf((), INT64, (2,), (0,)), {"x": ObservationLeaf((1,), FLOAT)}),
    ),
]


@pytest.mark.parametrize(("space", "spec"), SPACES)
def test_an_observation_is_a_tree_nested_like_its_space_with_the_same_values(
    space: gymnasium.Space[Any], spec: Any
) -> None:
    observations = Observations(space)
    assert observations.spec == spec
    raw = batch_space(space, 5).sample()
    batch = observations.of(raw)
    for path, leaf in trees.items(spec):
        ours, theirs = trees.at(batch, path), trees.at(raw, path)
        assert (ours.shape, ours.dtype) == ((5, *leaf.shape), leaf.dtype)
        if ours.shape != theirs.shape:
            theirs = np.moveaxis(theirs, -1, 1) if theirs.ndim > 1 else theirs[:, None]
        np.testing.assert_array_equal(ours, theirs.astype(ours.dtype))


def test_a_stack_of_colour_images_becomes_one_image() -> None:
    space = spaces.Box(0, 255, (4, 12, 10, 3), np.uint8)
    raw = np.arange(2 * 4 * 12 * 10 * 3).reshape(2, 4, 12, 10, 3).astype(np.uint8)
    observations = Observations(space)
    assert observations.spec.shape == (12, 12, 10)
    image = observations.of(raw)
    assert image[1, 3 * 2 + 1, 5, 6] == raw[1, 2, 5, 6, 1]


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (spaces.Text(5), "this environment's observation space"),
        (spaces.Dict(a=spaces.Dict(b=spaces.Text(5))), r"observation\['a'\]\['b'\]"),
    ],
)
def test_an_unsupported_space_is_named(space: gymnasium.Space[Any], where: str) -> None:
    with pytest.raises(TrainingError, match=rf"{where} is Text.*supported are Box, Discrete"):
        Observations(space)
