"""Ranks in the arguments of environments."""

import functools
from typing import Any

import pytest

from remotely_rl.supervision import env_ranks


class Robot:
    def __init__(self, port: int = 0, rank: int = 0, **more: Any):
        self.port, self.rank = port, rank


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"folder": "logs/{rank}"}, {"folder": "logs/7"}),
        ({"port": "{rank}"}, {"port": 7}),
        (
            {"ports": ["50{rank}", 3], "at": {"x": ("{rank}",)}},
            {"ports": ["507", 3], "at": {"x": (7,)}},
        ),
        ({"text": "{ranks} {0} {"}, {"text": "{ranks} {0} {"}),
    ],
)
def test_an_argument_may_have_the_rank_in_it(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert env_ranks.arguments(lambda **_: None, given, 7) == expected


def test_a_callable_is_given_its_rank_unless_it_has_one() -> None:
    assert env_ranks.arguments(Robot, {"port": 1}, 7) == {"port": 1, "rank": 7}
    assert env_ranks.arguments(Robot, {"rank": 3}, 7) == {"rank": 3}
    assert env_ranks.arguments(functools.partial(Robot, rank=3), {}, 7) == {}
    assert env_ranks.arguments(functools.partial(Robot, port=3), {}, 7) == {"rank": 7}
    assert env_ranks.arguments(dict, {}, 7) == {}  # a built-in, without a signature


def test_each_environment_has_a_copy_of_the_arguments() -> None:
    given: dict[str, Any] = {"places": [1]}
    env_ranks.arguments(Robot, given, 0)["places"].append(2)
    assert given == {"places": [1]}
