"""A class that exists already is left alone: remote_class returns a remote subclass of it."""

import argparse
import array
import collections
import fractions
import queue
import random
import string
import sys
import types
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import remotely
from remotely.api.handle import Handle


def with_speed(made: Any) -> int:
    made.speed = 2
    return int(made.speed)


# Each class, its arguments, and something to do with its objects, which returns a plain value.
CLASSES: list[tuple[Any, tuple[Any, ...], Callable[[Any], object]]] = [
    (queue.Queue, (), lambda made: [made.put(1), made.get(), made.empty()]),
    (queue.SimpleQueue, (), lambda made: [made.put(1), made.get(), made.empty()]),
    (argparse.Namespace, (), with_speed),
    (types.SimpleNamespace, (), with_speed),
    (collections.Counter, ("abca",), lambda made: [made["a"], made.most_common(1)]),
    (collections.deque, ([1, 2],), lambda made: [made.append(3), list(made)]),
    (random.Random, (1,), lambda made: made.random()),
    (string.Template, ("$name!",), lambda made: made.substitute(name="you")),
    (fractions.Fraction, (1, 2), lambda made: [made + 1, float(made)]),
    (array.array, ("i", [1]), lambda made: [made.append(2), made.tolist()]),
    (list, ([3, 1],), lambda made: [made.append(2), made.sort(), len(made), made[0], 3 in made]),
    (dict, (), lambda made: [made.__setitem__("a", 1), made["a"], "b" in made]),
    (int, (5,), lambda made: [made + 1, made < 6]),
    (torch.nn.ReLU, (), lambda made: made(torch.tensor([-1.0, 1.0])).tolist()),
    (torch.nn.Flatten, (0,), lambda made: made(torch.ones(2, 2)).shape),
    (gymnasium.spaces.Discrete, (3,), lambda made: [made.n, made.contains(2)]),
    (CartPoleEnv, (), lambda made: made.reset(seed=1)[0].tolist()),
]
NAMES = [cls.__name__ for cls, *_ in CLASSES]


def members(cls: type) -> dict[type, dict[str, object]]:
    return {base: dict(vars(base)) for base in cls.__mro__}


@pytest.mark.parametrize(("cls", "args", "use"), CLASSES, ids=NAMES)
def test_it_becomes_remote_and_stays_what_it_is(
    place: str, cls: Any, args: tuple[Any, ...], use: Callable[[Any], object]
) -> None:
    before = members(cls)

    remote = remotely.remote_class(cls)

    assert members(cls) == before
    made = remote(*args)
    assert issubclass(type(made), Handle)
    assert isinstance(made, cls)
    assert use(made) == use(cls(*args))
    assert type(cls(*args)) is cls
    assert members(cls) == before


class OfThisModule:
    """Used below by the name that this module has for it."""

    def who(self) -> str:
        return type(self).__mro__[1].__name__


def test_a_class_of_the_same_module_is_left_alone_once_it_has_its_name(place: str) -> None:
    remote = remotely.remote_class(cpus=0)(OfThisModule)

    assert remote().who() == "OfThisModule"
    assert type(OfThisModule()) is OfThisModule


def test_a_decorated_class_of_which_a_remote_subclass_is_made_keeps_its_options() -> None:
    @remotely.remote_class(cpus=2)
    class Remote:
        pass

    module: Any = sys.modules[__name__]
    Remote.__qualname__ = "Remote"
    module.Remote = Remote
    try:
        again = remotely.remote_class(cpus=3)(Remote)
    finally:
        del module.Remote

    assert issubclass(again, Remote)
    options = [vars(cls)["__remotely__"].cpus for cls in (Remote, again)]
    assert options == [2, 3]


def test_a_decorator_changes_the_class_whose_name_an_older_one_still_has() -> None:
    """As when a cell of a notebook runs again, or a module is reloaded."""
    module: Any = sys.modules[__name__]
    plain = types.new_class("OfThisModule", (), {}, lambda names: names.update(__module__=__name__))

    assert remotely.remote_class(plain) is plain
    assert module.OfThisModule is not plain


@pytest.mark.parametrize("cls", [bool, range, type(None)])
def test_a_class_that_can_have_no_subclass_is_refused_in_a_sentence(cls: type) -> None:
    with pytest.raises(TypeError, match=r"cannot be made remote.*: write a class that has one"):
        remotely.remote_class(cls)


class Registered:
    known: list[str] = []  # noqa: RUF012 - a registry, as plugins have it

    def __init_subclass__(cls, /, key: str, **rest: object) -> None:
        super().__init_subclass__(**rest)
        Registered.known.append(key)


class Plugin(Registered, key="plugin"):
    def who(self) -> str:
        return "a plugin"


def test_the_bases_do_not_hear_of_the_subclass(place: str) -> None:
    assert remotely.remote_class(Plugin)().who() == "a plugin"
    assert Registered.known == ["plugin"]
