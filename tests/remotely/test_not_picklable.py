"""Errors of pickling: they name the part of a value that cannot be sent, however hostile it is."""

import collections
import concurrent.futures
import copy
import dataclasses
import functools
import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from remotely.errors import NotPicklable
from remotely.futures.future import CallFuture, completed
from remotely.futures.stream import local_stream
from remotely.values import codec
from remotely.values.codec import encode
from remotely.values.unpicklable import find_unpicklable_part


@dataclasses.dataclass
class Config:
    names: list[str] = dataclasses.field(default_factory=list)


class Model:
    def __init__(self) -> None:
        self.weights = [0.0] * 1000
        self.lock = threading.Lock()


class Agent:
    def __init__(self) -> None:
        self.name = "agent"
        self.model = Model()


class Slotted:
    __slots__ = ("fine", "lock")

    def __init__(self) -> None:
        self.fine = 1
        self.lock = threading.Lock()


class Raises:
    def __reduce__(self) -> str:
        raise ValueError("never")


class RaisesInState:
    def __getstate__(self) -> object:
        raise OSError("no state")


class Nonsense:
    def __reduce__(self) -> object:  # type: ignore[override]
        return 42


class RaisesWhatCannotBeShown:
    def __reduce__(self) -> str:
        class Hidden(Exception):
            def __str__(self) -> str:
                raise RuntimeError("not even this")

        raise Hidden


class HugeRepr(Raises):
    def __repr__(self) -> str:
        return "x" * 10_000_000


class RaisesAtRepr(Raises):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class LiesAboutItsClass(Raises):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("no class")


class Endless:
    def __reduce__(self) -> tuple[object, ...]:
        return Endless, (Endless(),)


class GrowsWhenAsked(Raises):
    def __getattr__(self, name: str) -> object:
        return GrowsWhenAsked()


def deep() -> list[object]:
    value: list[object] = []
    for _ in range(200_000):
        value = [value]
    return value


def deep_within() -> object:
    return {"tree": deep()}


LOCK = threading.Lock()


ENDLESS = itertools.repeat(LOCK)


uses_a_global = lambda: ENDLESS  # not importable, as a function of a script is not


def closes_over(lock: object) -> object:
    return lambda: lock


class WithSuper:
    def method(self) -> int:
        return super().__hash__()

    @functools.cached_property
    def name(self) -> str:
        return super().__str__()

    member = (i for i in range(3))


class OnlyAMethodIsToBlame:
    @functools.cached_property
    def method(self) -> object:
        return super().__str__(), ENDLESS


uses_the_class = lambda: WithSuper().method()
uses_the_other_class = lambda: OnlyAMethodIsToBlame().method

locks: list[Any] = [LOCK]

CULPRITS = [
    (Agent(), "arg.model.lock cannot be sent: it is a _thread.lock"),
    ([1, {"x": (2, Agent())}], "arg[1]['x'][1].model.lock"),
    ({"a": 1, Raises(): 2}, "the key <"),
    ({1, Raises()}, "an item of arg"),
    ([*range(100_000), LOCK, 1], "arg[100000]"),
    (Slotted(), "arg.lock"),
    (collections.OrderedDict(a=LOCK), "arg['a']"),
    (collections.deque([0, LOCK]), "arg[1]"),
    (Config(names=locks), "arg.names[0]"),
    (functools.partial(print, LOCK), "_thread.lock"),
    (np.array([1, LOCK], dtype=object), "_thread.lock"),
    (ValueError("x", LOCK), "_thread.lock"),
    (uses_a_global, "the global 'ENDLESS' (used in arg)"),
    (closes_over(LOCK), "'lock' (used in arg)"),
    ((i for i in range(3)), "arg cannot be sent: it is a generator"),
    (WithSuper, "arg.member cannot be sent: it is a generator"),
    (WithSuper(), "arg.member cannot be sent: it is a generator"),
    (WithSuper.method, "the class 'WithSuper' (used in arg).member cannot be sent: it is a gen"),
    (uses_the_class, "the global 'WithSuper' (used in arg).member cannot be sent: it is a gen"),
    (OnlyAMethodIsToBlame, "the global 'ENDLESS' (used in arg.method)"),
    (uses_the_other_class, "(used in the global 'OnlyAMethodIsToBlame' (used in arg).method)"),
    (sys._getframe(), "arg cannot be sent: it is a frame"),
]


@pytest.mark.parametrize(("value", "words"), CULPRITS, ids=[words for _, words in CULPRITS])
def test_the_part_that_cannot_be_pickled_is_named(value: Any, words: str) -> None:
    with pytest.raises(NotPicklable) as refused:
        encode(value, "arg")
    assert words in str(refused.value)
    assert refused.value.__cause__ is not None


HOSTILE = [
    Raises,
    RaisesInState,
    Nonsense,
    RaisesWhatCannotBeShown,
    HugeRepr,
    RaisesAtRepr,
    LiesAboutItsClass,
    GrowsWhenAsked,
    Endless,
    deep,
    deep_within,
]


@pytest.mark.parametrize("make", HOSTILE, ids=[make.__name__ for make in HOSTILE])
@pytest.mark.parametrize("within", [lambda v: v, lambda v: [1, {"k": v}]], ids=["bare", "within"])
def test_a_hostile_value_is_refused_with_a_short_message(
    make: Callable[[], object], within: Callable[[object], object]
) -> None:
    with pytest.raises(NotPicklable) as refused:
        encode(within(make()))
    assert "cannot be sent" in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_value_that_exits_when_pickled_is_not_caught() -> None:
    class Exits:
        def __reduce__(self) -> str:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        encode(Exits())


def test_the_names_of_several_values_begin_their_paths() -> None:
    with pytest.raises(NotPicklable, match=r"^args\[0\]\.model\.lock cannot"):
        encode(((Agent(),), {}), ("args", "kwargs"))
    with pytest.raises(NotPicklable, match=r"^kwargs\['agent'\]\.model\.lock cannot"):
        encode(((), {"agent": Agent()}), ("args", "kwargs"))
    with pytest.raises(NotPicklable, match=r"^second\.model\.lock cannot"):
        encode(((1, Agent()), {}), (("first", "second"), "kwargs"))


def test_a_descriptive_name_follows_the_path() -> None:
    with pytest.raises(NotPicklable, match=r"^\[0\]\.lock in the result of make cannot"):
        encode([Model()], "the result of make")
    with pytest.raises(NotPicklable, match=r"^the result of make cannot be sent: it is a _thread"):
        encode(LOCK, "the result of make")


def test_nothing_is_reported_for_a_value_that_pickles() -> None:
    assert find_unpicklable_part({"a": [1, Config()]}, "arg") is None


def test_a_refused_value_is_unchanged() -> None:
    agent = Agent()
    before = copy.copy(vars(agent))
    with pytest.raises(NotPicklable):
        encode(agent)
    assert vars(agent) == before


def test_the_error_for_a_stream_suggests_a_list_or_its_actor() -> None:
    for value, where in (
        (local_stream(iter("ab")), "arg"),
        ([{"a": local_stream(iter("ab"))}], "arg[0]['a']"),
    ):
        with pytest.raises(NotPicklable) as raised:
            encode(value, "arg")
        wanted = f"{where} is a stream, and cannot be sent: pass a list of its items, or its actor"
        assert str(raised.value) == wanted


@pytest.mark.parametrize(
    ("args", "where"),
    [
        ((CallFuture("a call"),), "f: args[0]"),
        (({"inside": [1, completed(2)]},), "f: args[0]['inside'][1]"),
        ((concurrent.futures.Future(),), "f: args[0]"),
    ],
)
def test_the_error_for_a_future_suggests_its_result(args: Any, where: str) -> None:
    with pytest.raises(NotPicklable) as raised:
        codec.encode((args, {}), ("f: args", "f: kwargs"))
    wanted = f"{where} is a future, and cannot be sent: call .result() and pass what it returns"
    assert str(raised.value) == wanted
