"""Masks in every form that environments return."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import remotely_rl
from remotely_rl.environments import action_spaces
from remotely_rl.environments.masks import Masks
from remotely_rl.errors import TrainingError

DISCRETE = action_spaces.of(spaces.Discrete(3))
MULTI = action_spaces.of(spaces.MultiDiscrete([2, 3]))
VECTOR = spaces.Box(-1, 1, (1,))
NESTED = action_spaces.of(spaces.Dict({"go": spaces.Discrete(2), "push": VECTOR}))
PAIR = action_spaces.of(spaces.Tuple([VECTOR, spaces.Discrete(2), spaces.MultiDiscrete([2, 2])]))


def objects(*rows: Any) -> Any:
    """Return an array of objects: vector environments batch what is not an array so."""
    array = np.full(len(rows), None, dtype=object)
    for i, row in enumerate(rows):
        array[i] = row
    return array


@pytest.mark.parametrize(
    ("actions", "raw", "masks"),
    [
        (DISCRETE, np.array([[1, 0, 1], [0, 1, 0]], np.int8), ["101", "010"]),
        (DISCRETE, objects([1, 0, 1], (0, 1, 0)), ["101", "010"]),
        (MULTI, np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 0]], np.bool_), ["10110", "01100"]),
        (MULTI, (np.array([[1, 0], [0, 1]]), np.array([[1, 1, 0], [1, 0, 0]])), ["10110", "01100"]),
        (
            MULTI,
            objects((np.array([1, 0]), np.array([1, 1, 0])), (np.ones(2), np.array([1, 0, 0]))),
            ["10110", "11100"],
        ),
        (NESTED, {"go": np.array([[1, 0], [0, 1]])}, ["1011", "0111"]),
        (NESTED, np.array([[1, 0], [0, 1]]), ["1011", "0111"]),
        (
            NESTED,  # Gymnasium's batch if the second info has no mask of `go`
            {"go": np.array([[1, 0], [0, 0]]), "_go": np.array([True, False])},
            ["1011", "1111"],
        ),
        (
            PAIR,
            objects((None, [0, 1], None), (None, None, ([1, 0], [0, 1]))),
            ["11011111", "11111001"],
        ),
    ],
)
def test_a_mask_has_an_entry_for_each_output(
    actions: action_spaces.Actions, raw: Any, masks: list[str]
) -> None:
    found = Masks(actions, 2).of(raw)
    assert ["".join(map(str, row.astype(int))) for row in found] == masks


def test_without_a_mask_all_actions_are_legal() -> None:
    raw = np.array([[0, 0, 0], [0, 1, 0]])
    found = Masks(DISCRETE, 2).of(raw, np.array([False, True]))
    assert found.tolist() == [[True] * 3, [False, True, False]]
    assert raw.tolist() == [[0, 0, 0], [0, 1, 0]]  # the environment's array is unchanged


def test_an_empty_mask_is_allowed_if_no_action_follows() -> None:
    raw = np.array([[1, 0, 0, 1, 1], [1, 0, 0, 0, 0]])
    found = Masks(MULTI, 2).of(raw, acts=np.array([False, False]))
    assert found.tolist() == [[True, False, False, True, True], [True] * 5]


@pytest.mark.parametrize(
    ("actions", "raw", "said"),
    [
        (DISCRETE, [[1, 1, 1], [0, 0, 0]], "environment 1 has no legal action: its action_mask"),
        (MULTI, [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], "environment 1 has no legal action in choice"),
    ],
)
def test_an_environment_without_a_legal_action_is_named(
    actions: action_spaces.Actions, raw: Any, said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        Masks(actions, 2).of(np.array(raw))


@pytest.mark.parametrize(
    ("actions", "raw", "said"),
    [
        (DISCRETE, np.ones((2, 4)), r"environment 0 has an action_mask of shape \(4,\);.* need 3"),
        (MULTI, objects(([1, 1], [1, 1]), None), r"a tuple of 2; its actions need 2 \+ 3 numbers"),
        (NESTED, objects((1, 1), (1, 1)), "of a tuple of 2; its actions need 2 numbers"),
        (NESTED, np.ones((2, 3)), r"of shape \(3,\); its actions need 2 numbers"),
        (NESTED, {"goo": np.ones((2, 2))}, "environment 0 has an action_mask for 'goo', which"),
        (PAIR, objects((None, [0, 1], None, [1]), None), "an action_mask for 3, which is not a p"),
    ],
)
def test_a_mask_of_a_wrong_shape_is_rejected(
    actions: action_spaces.Actions, raw: Any, said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        Masks(actions, 2).of(raw)


def test_masks_of_continuous_actions_are_rejected() -> None:
    with pytest.raises(TrainingError, match="its actions are continuous: only Discrete, Multi"):
        Masks(action_spaces.of(VECTOR), 1)


@pytest.mark.parametrize(
    ("actions", "raw", "shown"),
    [
        (DISCRETE, np.array([[1, 1, 1], [0, 0, -1e9]], np.float32), "-1000000000.0"),
        (DISCRETE, np.array([[1, 1, 1], [0, -np.inf, 0]]), "-inf"),
        (DISCRETE, np.array([[1, 1, 1], [0, np.nan, 1]]), "nan"),
        (DISCRETE, np.array([[1, 1, 1], [0, 2, 1]], np.int8), "2"),
        (DISCRETE, np.array([[1, 1, 1], [1, 0, 0.5]]), "0.5"),
        (DISCRETE, objects([1, 1, 1], [1, 0, -1]), "-1"),
        (DISCRETE, objects([1, 1, 1], ["1", "0", "1"]), "1"),
        (MULTI, objects((np.ones(2), np.ones(3)), (np.ones(2), np.array([0, 0, -5]))), "-5.0"),
        (NESTED, {"go": np.array([[1, 0], [0, -9]])}, "-9"),
    ],
)
def test_a_mask_of_other_numbers_than_0_and_1_is_refused(
    actions: action_spaces.Actions, raw: Any, shown: str
) -> None:
    with pytest.raises(TrainingError, match=r"0 or False .*added to logits.*mask >= 0") as refused:
        Masks(actions, 2).of(raw)
    assert str(refused.value).startswith(f"environment 1 has an action_mask with {shown};")


def test_a_mask_that_is_not_read_may_hold_anything() -> None:
    raw = np.array([[1, 0, 1], [-1e9, 7, np.nan]])
    found = Masks(DISCRETE, 2).of(raw, read=np.array([True, False]))
    assert found.tolist() == [[True, False, True], [True, True, True]]


def test_a_mask_of_an_environment_is_not_written_to() -> None:
    raw = np.ones((2, 3), np.bool_)
    Masks(DISCRETE, 2).of(raw)[:] = False
    assert raw.all()


class Additive(gymnasium.Env[Any, Any]):
    """Its mask is to be added to logits: 0 means legal."""

    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Discrete(4)
    mask = np.array([0, 0, -1e9, -1e9], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {"action_mask": self.mask}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 0.0, False, False, {"action_mask": self.mask}


def test_a_check_refuses_a_mask_that_is_added_to_logits() -> None:
    with pytest.raises(TrainingError, match=r"has an action_mask with -1000000000\.0"):
        remotely_rl.check(Additive)
