"""Spaces as a run folder keeps them."""

import json
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from remotely_rl.environments.spaces import Spaces, parsed, plain

LOW = np.array([-1, 0, -np.inf], np.float32)
SEEN = {
    "bytes": spaces.Box(0, 255, (8, 6, 3), np.uint8),
    "bounds": spaces.Box(LOW, LOW + 2, dtype=np.float32),
    "number": spaces.Box(-5, 5, (), np.float64),
    "large": spaces.Box(0, 2**63, (2,), np.uint64),
    "discrete": spaces.Discrete(3, start=-1),
    "choices": spaces.MultiDiscrete([[3, 4], [2, 2]], start=[[1, 0], [0, 5]]),  # type: ignore[list-item]
    "bits": spaces.MultiBinary(3),
    "table": spaces.MultiBinary([2, 3]),
    "nested": spaces.Tuple([spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiBinary(1)})]),
}


@pytest.mark.parametrize("name", SEEN)
def test_spaces_are_the_same_after_they_were_kept(name: str) -> None:
    space: Any = SEEN[name]
    both = Spaces(space, spaces.Discrete(2), channels_first=True, masks_in_info=True)
    again = parsed(json.loads(json.dumps(plain(both))))
    assert again == both
    assert again.spec == both.spec
    assert pickle.loads(pickle.dumps(both)) == both


@pytest.mark.parametrize("content", [None, {}, {"observation": {"kind": "Text"}}, []])
def test_anything_else_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="no spaces"):
        parsed(content)


def test_a_space_of_the_users_own_is_kept_as_what_it_is_a_kind_of() -> None:
    class Own(spaces.Discrete):
        pass

    own: gymnasium.Space[Any] = Own(3)
    assert parsed(plain(Spaces(own, own))).action == spaces.Discrete(3)
