"""Tests of Rows: NaN, infinity and values outside the space are found, and the leaf is named."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from remotely_rl.supervision.rows import EnvRows, NotFinite, WrongShape


def check(space: gymnasium.Space[Any], obs: Any) -> None:
    rows = EnvRows(space, 3)
    rows.write(1, obs)
    rows.check_row(1)
    assert rows.are_finite()


BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (4, 4), np.uint8)


def test_finite_numbers_pass_even_if_their_squares_overflow() -> None:
    rows = EnvRows(BOX, 1)
    rows.write(0, np.array([3e38, 3e38, -3e38], np.float32))
    rows.check_row(0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_index_of_the_first_bad_number_is_named(bad: float) -> None:
    with pytest.raises(NotFinite, match=r"the observation has 1 .* at 2 of 3"):
        check(BOX, np.array([0, 0, bad], np.float32))


@pytest.mark.parametrize(
    ("space", "obs", "leaf"),
    [
        (spaces.Dict(a=IMAGE, b=BOX), {"a": np.zeros((4, 4), np.uint8)}, r"\['b'\]"),
        (spaces.Tuple((IMAGE, BOX)), (np.zeros((4, 4), np.uint8),), r"\[1\]"),
    ],
)
def test_the_leaf_is_named(space: gymnasium.Space[Any], obs: Any, leaf: str) -> None:
    bad = np.array([0, np.nan, 0], np.float32)
    whole = {**obs, "b": bad} if isinstance(obs, dict) else (*obs, bad)
    with pytest.raises(NotFinite, match=f"the observation{leaf} has"):
        check(space, whole)


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (BOX, np.zeros(4, np.float32)),
        (BOX, np.float32(0)),
        (IMAGE, np.zeros((4, 5), np.uint8)),
        (spaces.Dict(a=BOX), {"b": np.zeros(3, np.float32)}),
        (spaces.Tuple((BOX, BOX)), (np.zeros(3, np.float32),)),
        (IMAGE, np.full((4, 4), 0.5)),
        (IMAGE, np.full((4, 4), 256)),
        (spaces.Box(-128, 127, (2,), np.int8), np.array([0, 200])),  # would become -56
        (spaces.Discrete(3), 1.5),
        (spaces.Discrete(3), np.array([1])),
    ],
)
def test_wrong_shapes_and_dtypes_are_found(space: gymnasium.Space[Any], obs: Any) -> None:
    with pytest.raises(WrongShape, match="its space has"):
        check(space, obs)


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (spaces.Discrete(5), 5, "the observation is 5; its space has 0 to 4"),
        (spaces.Discrete(3, start=-1), np.int64(2), "is 2; its space has -1 to 1"),
        (spaces.Dict(a=spaces.Discrete(5)), {"a": -1}, r"\['a'\] is -1"),
        (spaces.MultiDiscrete([3, 4]), np.array([0, 4]), r"has 4 at \[1\], which is not of Multi"),
        (spaces.MultiDiscrete([3], start=[2]), [1], r"has 1 at \[0\]"),
        (spaces.MultiBinary(2), np.array([0, 2], np.int8), r"has 2 at \[1\]"),
    ],
)
def test_values_outside_a_discrete_space_are_found(space: Any, obs: Any, words: str) -> None:
    with pytest.raises(WrongShape, match=words):
        check(space, obs)


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (BOX, [1.0, 2.0, 3.0]),
        (BOX, np.zeros(3)),
        (IMAGE, np.full((4, 4), 255)),
        (spaces.Discrete(3), np.int32(2)),
        (spaces.Discrete(3, start=-1), -1),
        (spaces.Discrete(3, start=-1), 1),
        (spaces.MultiDiscrete([3, 4], start=[2, 0]), np.array([2, 0])),
        (spaces.MultiDiscrete([3, 4], start=[2, 0]), np.array([4, 3])),
        (spaces.MultiBinary(2), np.array([0, 1], np.int8)),
    ],
)
def test_values_of_the_space_pass_whatever_their_type(space: Any, obs: Any) -> None:
    check(space, obs)
