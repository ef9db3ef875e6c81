"""Groups: actors with the same arguments, or with an item of `each`, born at the same time."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.values import codec
from tests.clusters import wait_until


@remotely.remote_class
class Player:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "broken" in repr(args):
            raise ValueError("broken")
        self.args = args
        self.kwargs = kwargs

    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.args, self.kwargs

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@remotely.remote_class(cpus=0)
class Meeting:
    """Its constructor returns once `of` constructors have begun."""

    def __init__(self, mine: str, folder: Path, of: int) -> None:
        (folder / mine).touch()
        wait_until(lambda: len(list(folder.iterdir())) >= of, "all constructors have begun")
        self.mine = mine


def test_each_item_is_a_tuple_a_dict_or_one_argument(place: str) -> None:
    items = ["Pong", ("Breakout", 2), {"game": "Qbert"}, [1, 2], ((1, 2),), ()]

    players = remotely.group(Player, each=items)

    assert players.given() == [
        (("Pong",), {}),
        (("Breakout", 2), {}),
        ((), {"game": "Qbert"}),
        (([1, 2],), {}),
        (((1, 2),), {}),
        ((), {}),
    ]


def test_keyword_arguments_are_for_all_unless_an_item_has_its_own(place: str) -> None:
    players = remotely.group(Player, each=iter(["Pong", {"mode": "train"}]), mode="eval", seed=1)

    assert players.given() == [
        (("Pong",), {"mode": "eval", "seed": 1}),
        ((), {"mode": "train", "seed": 1}),
    ]


def test_actors_with_different_arguments_are_born_at_the_same_time(
    on_cluster: None, tmp_path: Path
) -> None:
    names = ["a", "b", "c"]

    meetings = remotely.group(Meeting, each=names, folder=tmp_path, of=3)

    assert meetings.mine == names


def test_all_are_made_or_none(place: str) -> None:
    with pytest.raises(ValueError, match="broken"):
        remotely.group(Player, each=["fine", "broken"])

    wait_until(lambda: not remotely.status().actors, "the end of the other")


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The values that are pickled."""
    plain, seen = codec.encode, list[object]()

    def encode(value: object, *args: Any, **kwargs: Any) -> Any:
        seen.append(value)
        return plain(value, *args, **kwargs)

    monkeypatch.setattr(codec, "encode", encode)
    return seen


def test_equal_arguments_are_pickled_once(on_cluster: None, encoded: list[object]) -> None:
    large = np.ones(100_000)

    same, other = remotely.group(Player, 3, large), remotely.group(Player, each=[large, 1])

    assert sum(isinstance(value, tuple) and value[0] is Player for value in encoded) == 3
    assert [args[0].sum() for args, _ in same.given()] == [100_000] * 3
    assert [np.sum(args[0]) for args, _ in other.given()] == [100_000, 1]


def test_each_has_its_own_arguments_in_its_next_life(on_cluster: None) -> None:
    placeable = remotely.options(Player, max_restarts=1)
    players = remotely.group(placeable, each=[np.ones(3), np.ones(100_000)])

    for player in players:
        with contextlib.suppress(remotely.ActorDied):
            player.die()

    assert [args[0].sum() for args, _ in players.given()] == [3, 100_000]


@pytest.mark.parametrize(
    ("args", "each", "error", "says"),
    [
        ((3,), [1], TypeError, "takes no count"),
        ((), 3, TypeError, "must be a list"),
        ((), "ab", TypeError, "must be a list"),
        ((), [], ValueError, "at least one actor"),
    ],
)
def test_what_is_wrong_with_each_is_said(
    args: tuple[Any, ...], each: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        remotely.group(Player, *args, each=each)


def test_without_a_count_the_error_names_both_ways() -> None:
    with pytest.raises(TypeError, match=r"needs a count, or each=\[\.\.\.\]"):
        remotely.group(Player)  # type: ignore[call-overload]
