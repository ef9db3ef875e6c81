"""Marks on methods: where they are found, and that only idempotent calls are retried."""

import functools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import remotely
from remotely.errors import ActorDied
from remotely.objects.marks import Marks, marks_of
from remotely.values import codec


@pytest.mark.parametrize("retries", [0, -1, 1.5, True, "2"])
def test_an_invalid_number_of_retries_raises_a_value_error(retries: Any) -> None:
    with pytest.raises(ValueError, match="whole number, at least 1"):
        remotely.idempotent(retries=retries)


def marked(member: Any) -> Any:
    return remotely.timeout(2)(remotely.idempotent(retries=3)(member))


def plain(self: Any, _: Any = None) -> None: ...
async def coroutine(self: Any) -> None: ...


@pytest.mark.parametrize(
    "make",
    [
        lambda: marked(_copy(plain)),
        lambda: marked(_copy(coroutine)),
        lambda: marked(classmethod(_copy(plain))),
        lambda: classmethod(marked(_copy(plain))),
        lambda: marked(staticmethod(_copy(plain))),
        lambda: staticmethod(marked(_copy(plain))),
        lambda: marked(remotely.batched(_copy(plain))),
        lambda: remotely.batched(marked(_copy(plain))),
        lambda: marked(functools.partialmethod(plain, 1)),
        lambda: functools.partialmethod(marked(_copy(plain)), 1),
        lambda: functools.singledispatchmethod(marked(_copy(plain))),
        lambda: functools.partial(marked(_copy(plain)), 1),
    ],
)
def test_a_mark_is_found_above_and_below_other_decorators(make: Callable[[], Any]) -> None:
    made = type("Made", (), {"method": make()})
    assert marks_of(vars(made)["method"]) == Marks(3, 2.0)
    encoded = codec.encode(made)  # by value, since no module has this class
    copy = codec.decode(encoded.payload, encoded.buffers)
    assert marks_of(vars(copy)["method"]) == Marks(3, 2.0)
    assert marks_of(plain) == Marks()


def _copy(function: Any) -> Any:
    return FunctionType(function.__code__, globals(), function.__name__, function.__defaults__)


def stream(self: Any) -> Iterator[int]:
    yield 1


async def async_stream(self: Any) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("method", lambda: marked(_copy(stream)), "method yields"),
        ("method", lambda: staticmethod(marked(_copy(stream))), "method yields"),
        ("method", lambda: marked(_copy(async_stream)), "method yields"),
        ("__iter__", lambda: marked(_copy(stream)), "__iter__ yields"),
        ("__init__", lambda: marked(_copy(plain)), "__init__ is not called on a handle"),
        ("attribute", lambda: property(marked(_copy(plain))), "attribute is read, not called"),
        ("attribute", lambda: functools.cached_property(marked(_copy(plain))), "is read"),
        ("attribute", lambda: marked(functools.cached_property(plain)), "is read"),
        ("attribute", lambda: marked(property(plain)), "cannot be marked"),
    ],
)
def test_a_mark_that_no_call_would_heed_is_refused(
    name: str, make: Callable[[], Any], why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        remotely.remote_class(type("Made", (), {name: make()}))


@remotely.remote_class(max_restarts=10)
class Frail:
    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    @remotely.idempotent(retries=3)
    def die_once(self) -> int:
        lives = len(list(self.folder.iterdir()))
        (self.folder / str(lives)).touch()
        if not lives:
            signal.raise_signal(signal.SIGSEGV)
        return lives

    @remotely.idempotent(retries=3)
    def __getitem__(self, _: int) -> int:
        return self.die_once()

    @remotely.idempotent(retries=3)
    def __call__(self) -> int:
        return self.die_once()

    @classmethod
    @remotely.idempotent(retries=3)
    def die_once_in(cls, folder: str) -> int:
        return cls(folder).die_once()

    def die_always(self) -> None:
        (self.folder / str(os.getpid())).touch()
        os._exit(3)


def _in_pool(frail: Any, folder: str) -> Any:
    with remotely.Pool(remotely.options(Frail, max_restarts=1), 1, folder) as pool:
        (lives,) = pool.map(Frail.die_once_in, [folder])
    return lives


SPECIAL: dict[str, Callable[[Any, str], Any]] = {
    "[]": lambda frail, folder: frail[0],
    "()": lambda frail, folder: frail(),
    "a class method": lambda frail, folder: frail.die_once_in(folder),
    "a pool": _in_pool,
}


@pytest.mark.parametrize("way", ["call", "submit", "callback", "wait", "group", *SPECIAL])
def test_an_idempotent_call_is_retried_after_its_actor_died(
    cluster: str, tmp_path: Path, way: str
) -> None:
    frail: Any = Frail(str(tmp_path))
    if way in SPECIAL:
        assert SPECIAL[way](frail, str(tmp_path)) == 1
    elif way == "call":
        assert frail.die_once() == 1
    elif way == "group":
        assert remotely.Group([frail]).die_once() == [1]
    else:
        future = frail.die_once.submit()
        if way == "callback":
            future.add_done_callback(lambda _: None)
        if way == "wait":
            assert wait([future], timeout=40).done
        assert future.result(timeout=40) == 1


@pytest.mark.promise("exit_status")
def test_an_unmarked_call_is_not_retried_and_its_actor_is_restarted(
    cluster: str, tmp_path: Path
) -> None:
    frail = Frail(str(tmp_path))
    with pytest.raises(ActorDied, match="ended with exit code 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ActorDied, match="ended with exit code 3"):
        frail.die_always()
    assert len(list(tmp_path.iterdir())) == 2
