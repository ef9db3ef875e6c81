"""References held by calls, errors and futures: all are freed at once, without the collector.

A handle that lives on in the frames of an error would keep its actor and the CPUs of that.
"""

import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import remotely
from remotely import NoResources
from tests.clusters import wait_until


class Mine(Exception):
    """An error that can be watched."""


class NotHere:
    """Pickles, and does not unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _raise, ()


def _raise() -> None:
    raise Mine


@remotely.remote_class
class Actor:
    def __init__(self, error: type[Exception] | None = None) -> None:
        self.broken = NotHere()
        if error is not None:
            raise error

    def boom(self, *_: Any) -> None:
        raise Mine

    @remotely.idempotent(retries=2)
    def idempotent(self) -> None:
        raise Mine

    @remotely.batched
    def batched(self, values: list[Any]) -> None:
        raise Mine

    def stream(self) -> Iterator[int]:
        yield 1
        raise Mine

    @property
    def attribute(self) -> None:
        raise Mine

    @attribute.setter
    def attribute(self, value: Any) -> None:
        raise Mine

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        raise Mine

    def work(self) -> int:
        return 1


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def leave(target: Any) -> None:
    with target:
        pass


# Without `asyncio.run`, whose own frames hold the task that raised.
RAISING: dict[str, Callable[[Any], object]] = {
    "a call": lambda actor: actor.boom(),
    "an argument": lambda actor: actor.boom(lambda: 1),
    "a future": lambda actor: actor.boom.submit().result(),
    "get of a future": lambda actor: remotely.get(actor.boom.submit()),
    "get of a reference": lambda actor: remotely.get(remotely.ref(actor.boom.submit())),
    "an idempotent call": lambda actor: actor.idempotent(),
    "a batched call": lambda actor: actor.batched(1),
    "a group's call": lambda actor: remotely.Group([actor]).boom(),
    "a stream": lambda actor: list(actor.stream()),
    "merged streams": lambda actor: list(remotely.merge([actor.stream()])),
    "as_completed": lambda actor: next(remotely.as_completed([actor.boom.submit()])).result(),
    "an attribute": lambda actor: actor.attribute,
    "a group's attribute": lambda actor: remotely.Group([actor]).attribute,
    "an attribute written": lambda actor: setattr(actor, "attribute", 1),
    "an argument that does not pickle": lambda actor: actor.work([threading.Lock()]),
    "an attribute that does not pickle": lambda actor: setattr(
        actor, "attribute", threading.Lock()
    ),
    "a result that does not unpickle": lambda actor: actor.broken,
    "a constructor": lambda actor: Actor(Mine),
    "a with block": lambda actor: leave(Actor()),
    "a with block of a group": lambda actor: leave(remotely.group(Actor, 2)),
}


def test_a_caught_error_is_freed_at_once(here: None, no_collector: None) -> None:
    actor = Actor()
    for name, raising in RAISING.items():
        caught = None
        try:
            raising(actor)
        except (Mine, remotely.NotPicklable) as error:
            caught = weakref.ref(error)
        assert caught is not None, name
        # The receiver, perhaps another thread, may be just about to drop it.
        wait_until(functools.partial(_is_gone, caught), f"nothing holds the error of {name}")


def _is_gone(reference: "weakref.ref[Any]") -> bool:
    return reference() is None


def test_a_caught_error_is_freed_at_once_in_one_process(
    monkeypatch: pytest.MonkeyPatch, nothing_left: None, no_collector: None
) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    actor = Actor()
    for name in ("a call", "a future", "a group's call", "an attribute"):
        try:
            RAISING[name](actor)
        except Mine as error:
            caught = weakref.ref(error)
        assert caught() is None, name


@pytest.mark.usefixtures("nothing_left", "no_collector")
def test_an_actor_without_a_handle_releases_its_cpu() -> None:
    remotely.connect(cpus=1, patience_s=10)

    def boom() -> None:
        actor = Actor()
        try:
            actor.boom()
        except Mine:
            pass

    def misspelt() -> None:
        actor: Any = Actor()
        try:
            actor.bom()
        except AttributeError:
            pass

    def too_many() -> None:
        only = Actor()
        with pytest.raises(NoResources):
            remotely.options(Actor, cpus=2)()
        assert only.work() == 1

    kept: list[Any] = []

    def done() -> None:
        kept.append(Actor().work.submit())
        assert kept[0].result() == 1

    def circle() -> None:  # the request that waits for the CPU collects the garbage
        circle: list[Any] = [Actor()]
        circle.append(circle)

    for leave in (boom, misspelt, too_many, done, circle):
        leave()
        assert Actor().work() == 1


@pytest.mark.usefixtures("here", "no_collector")
def test_an_error_for_a_dropped_future_leaves_nothing() -> None:
    actor = Actor()
    future = actor.boom.submit()
    wait_until(future.done, "it raised")
    assert isinstance(future.exception(), Mine)
    gone = weakref.ref(future)
    del future
    assert gone() is None
