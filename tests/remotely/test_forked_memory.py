"""A large value belongs to each process of a fork, wherever the value came from.

The processes are on two machines of `started` (conftest.py), and this one is on the first of them.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import remotely
from tests.clusters import Started

Array = np.ndarray[Any, Any]
SIZE = 200_000  # numbers: 1.6 MB
PART = 5_000


class Holder:
    """Holds a value, and forks with it."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def keep(self, value: Any) -> None:
        self.value = value

    def holds(self, number: float) -> bool:
        return bool((self.value == number).all())

    def fork(self) -> None:
        """Fork a child that checks and changes its value when it is told to."""
        told, self._tell = os.pipe()
        self._answer, answer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.read(told, 1)
                os.write(answer, b"%d" % self.holds(1.0))
                self.value[-PART:] = 77
                os.write(answer, b".")
                os.read(told, 1)
                unchanged, changed = self.value[:-PART], self.value[-PART:]
                os.write(answer, b"%d" % ((unchanged == 1).all() and (changed == 77).all()))
            finally:
                os._exit(0)

    def write(self) -> str:
        """Change the value here, then in the child; return what the child, and this one, saw."""
        self.value[:PART] = 2
        os.write(self._tell, b".")
        seen = os.read(self._answer, 1).decode()
        os.read(self._answer, 1)
        return f"{seen}{bool((self.value[PART:] == 1).all()):d}"

    def end(self) -> str:
        """Return whether the child still has its value."""
        os.write(self._tell, b".")
        seen = os.read(self._answer, 1).decode()
        os.waitpid(self._child, 0)
        return seen


@remotely.remote_class
class Actor(Holder):
    def make(self, number: float) -> Array:
        return np.full(SIZE, number)

    def items(self, number: float) -> Iterator[Array]:
        yield np.full(SIZE, number)

    def first(self, value: Array) -> float:
        return float(value[0])

    def host(self) -> str:
        return os.environ["REMOTELY_HOST"]


@pytest.fixture
def connected(
    started: Started, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("REMOTELY_HOST", "one")
    remotely.connect(started.address, key=started.key)
    yield
    remotely.shutdown()


def on_each(*arguments: Any) -> dict[str, Any]:
    """Return an actor on each machine."""
    actors = remotely.group(Actor, 2, *arguments)
    return dict(zip(actors.host(), actors, strict=True))


def check(holder: Any, take: Callable[[float], object]) -> None:
    """Check a holder to which `take` brings arrays that are full of one number."""
    take(1.0)
    holder.fork()
    assert holder.write() == "11", "neither sees what the other one writes"
    holder.keep(None)
    for _ in range(4):  # the memory is used again
        take(3.0)
        assert holder.holds(3.0)
    assert holder.end() == "1", "the child keeps what its parent has dropped"


def passed_on(maker: Any, other: Any, number: float) -> Array:
    """Return a result that was left in its store for the call to which it was passed on."""
    future = maker.make.submit(number)
    assert other.first(future) == number
    value: Array = future.result()
    return value


RESULTS: dict[str, Callable[[Any, Any, float], Array]] = {
    "a result": lambda maker, _, number: maker.make(number),
    "of a group": lambda maker, _, number: remotely.Group([maker, maker]).make(number)[1],
    "an item of a stream": lambda maker, _, number: next(iter(maker.items(number))),
    "a result that was passed on": passed_on,
    "a copy of a ref": lambda _, __, number: remotely.get(remotely.put(np.full(SIZE, number))),
}


@pytest.mark.parametrize("way", RESULTS)
@pytest.mark.parametrize("host", ["one", "two"])
def test_a_value_that_a_client_holds_is_private_to_it_and_its_fork(
    connected: None, host: str, way: str
) -> None:
    actors, holder = on_each(), Holder()
    maker, other = actors[host], actors["two"]
    check(holder, lambda number: holder.keep(RESULTS[way](maker, other, number)))


def keep_in_group(actor: Any, other: Any, value: Array) -> None:
    remotely.Group([actor, other]).keep(value)


def keep_attribute(actor: Any, _: Any, value: Array) -> None:
    actor.value = value


ARGUMENTS: dict[str, Callable[[Any, Any, Array], object]] = {
    "an argument": lambda actor, _, value: actor.keep(value),
    "of a group": keep_in_group,
    "an attribute": keep_attribute,
    "a ref": lambda actor, _, value: actor.keep(remotely.put(value)),
    "a future": lambda actor, maker, value: actor.keep(maker.make.submit(float(value[0]))),
    "submitted": lambda actor, _, value: actor.keep.submit(value).result(),
}


@pytest.mark.parametrize("way", ARGUMENTS)
@pytest.mark.parametrize("host", ["one", "two"])
def test_a_value_that_an_actor_holds_is_private_to_it_and_its_fork(
    connected: None, host: str, way: str
) -> None:
    actors = on_each()
    actor, other = actors[host], actors["one"]
    check(actor, lambda number: ARGUMENTS[way](actor, other, np.full(SIZE, number)))


@pytest.mark.parametrize("host", ["one", "two"])
def test_an_argument_of_a_constructor_is_private_to_an_actor_and_its_fork(
    connected: None, host: str
) -> None:
    actor = on_each(np.ones(SIZE))[host]
    check(actor, lambda number: number == 1 or actor.keep(np.full(SIZE, number)))


def test_a_ref_stays_as_it_is_in_a_forked_child(connected: None) -> None:
    ref = [remotely.put(np.ones(SIZE))]
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.read(told, 1)
            os._exit(int((ref[0].get() == 1).all()))
        finally:
            os._exit(2)
    ref.clear()
    for _ in range(4):
        remotely.put(np.zeros(SIZE))
    os.write(tell, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
