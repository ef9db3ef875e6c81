"""NaN, infinity and wrong shapes are found, and the leaf is named."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from remotely_rl.supervision.finite import NotFinite, WrongShape, check_reward, checks_of

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (4, 4), np.uint8)


def test_finite_observations_pass_even_if_their_squares_overflow() -> None:
    for obs in ([1.0, 2.0, 3.0], [3e38, 3e38, -3e38]):
        checks_of(BOX)(np.array(obs, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_place_of_the_first_bad_number_is_named(bad: float) -> None:
    with pytest.raises(NotFinite, match=r"the observation has 1 .* at \[2\]"):
        checks_of(BOX)(np.array([0, 0, bad], np.float32))


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
        checks_of(space)(whole)


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (BOX, np.zeros(4, np.float32)),
        (BOX, np.float32(0)),
        (IMAGE, np.zeros((4, 5), np.uint8)),
        (spaces.Dict(a=BOX), {"b": np.zeros(3, np.float32)}),
        (spaces.Tuple((BOX, BOX)), (np.zeros(3, np.float32),)),
    ],
)
def test_what_is_not_of_its_space_is_found(space: gymnasium.Space[Any], obs: Any) -> None:
    with pytest.raises(WrongShape, match="its space has"):
        checks_of(space, finite=False)(obs)


def test_discrete_observations_and_lists_pass() -> None:
    checks_of(spaces.Discrete(3))(2)
    checks_of(BOX)([1.0, 2.0, 3.0])


def test_rewards_are_finite() -> None:
    check_reward(1)
    check_reward(np.float64(-3.5))
    for bad in (float("nan"), np.inf):
        with pytest.raises(NotFinite, match="the reward is"):
            check_reward(bad)
