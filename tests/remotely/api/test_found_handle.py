"""Handles of actors that were found by name, before and after they have their class."""

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import remotely
from remotely.api import connection
from remotely.api.found_handle import _ASKED, FoundHandle
from remotely.objects.special import FORWARDED
from tests.clusters import freeze, wait_until


@remotely.remote_class(cpus=0)
class Shelf:
    def __init__(self, *books: str) -> None:
        self.books = list(books)
        self.is_open = False

    def pid(self) -> int:
        return os.getpid()

    def itself(self) -> Any:
        return self

    def give(self, other: Any, *args: Any) -> Any:
        return other.pid()

    def __len__(self) -> int:
        return len(self.books)

    def __getitem__(self, index: int) -> str:
        return self.books[index]

    def __setitem__(self, index: int, book: str) -> None:
        self.books[index] = book

    def __iter__(self) -> Iterator[str]:
        yield from self.books

    def __contains__(self, book: str) -> bool:
        return book in self.books

    def __add__(self, book: str) -> list[str]:
        return [*self.books, book]

    def __radd__(self, book: str) -> list[str]:
        return [book, *self.books]

    def __lt__(self, number: int) -> bool:
        return len(self.books) < number

    def __call__(self, index: int, *, upper: bool) -> str:
        return self.books[index].upper() if upper else self.books[index]

    def __enter__(self) -> str:
        return "entered"

    def __exit__(self, *_: object) -> None: ...


@remotely.remote_class(cpus=0)
class Plain:
    def takes_as_idle(self, _: Any) -> bool:
        return connection.is_idle_actor()

    def pid_of(self, shelf: Any) -> Any:
        return shelf.pid()


@pytest.fixture
def shelf(any_cluster: None) -> Any:
    return remotely.options(Shelf, name="shelf")("a", "b")


def written(shelf: Any) -> Any:
    shelf.is_open = True
    return shelf


USES: dict[str, Callable[[Any], Any]] = {
    "method": lambda shelf: shelf.pid.submit().result() > 0,
    "attribute": lambda shelf: shelf.books == ["a", "b"],
    "write": lambda shelf: written(shelf).is_open,
    "isinstance": lambda shelf: isinstance(shelf, Shelf) and not isinstance(shelf, dict),
    "len": lambda shelf: len(shelf) == 2,
    "bool": bool,
    "item": lambda shelf: shelf[1] == "b",
    "for": lambda shelf: list(shelf) == ["a", "b"],
    "in": lambda shelf: "a" in shelf and "c" not in shelf,
    "+": lambda shelf: shelf + "c" == ["a", "b", "c"],
    "reflected +": lambda shelf: "c" + shelf == ["c", "a", "b"],
    "<": lambda shelf: shelf < 3,
    "call": lambda shelf: shelf(0, upper=True) == "A",
    "dir": lambda shelf: "pid" in dir(shelf),
    "self": lambda shelf: shelf.itself() == shelf,
    "group": lambda shelf: remotely.Group([shelf, shelf]).pid() == [shelf.pid()] * 2,
}


def test_its_first_use_gives_it_its_class(shelf: Any) -> None:
    for name, use in USES.items():
        found = remotely.get_actor("shelf")
        assert type(found) is FoundHandle, name
        assert use(found), name
        assert type(found) is type(shelf), name
        assert found == shelf, name


def test_what_its_class_lacks_raises_the_error_of_its_class(any_cluster: None) -> None:
    plain = remotely.options(Plain, name="plain")()
    uses: list[Callable[[Any], Any]] = [len, iter, int, lambda x: x[0], lambda x: x < 1]
    uses += [lambda x: x + 1, lambda x: 1 + x]
    for use in uses:
        with pytest.raises(TypeError) as of_class:
            use(plain)
        with pytest.raises(TypeError) as of_found:
            use(remotely.get_actor("plain"))
        assert str(of_found.value) == str(of_class.value)
    assert remotely.get_actor("plain")
    with pytest.raises(AttributeError, match="unheard"):
        remotely.get_actor("plain").unheard()


def test_leaving_a_with_block_closes_it(shelf: Any) -> None:
    with remotely.get_actor("shelf") as entered:
        assert entered == "entered"
    with pytest.raises(remotely.ActorDied):
        shelf.pid()


def test_leaving_a_with_block_is_quiet_if_the_actor_has_died_in_it(any_cluster: None) -> None:
    plain = remotely.options(Plain, name="plain")()
    with remotely.get_actor("plain") as entered:
        remotely.kill(plain)
        with pytest.raises(remotely.ActorDied):
            entered.takes_as_idle(None)


def test_an_idle_actor_that_gets_one_stays_idle_until_it_uses_it(here: None) -> None:
    shelf, plain = remotely.options(Shelf, name="shelf")(), Plain()
    assert plain.takes_as_idle(remotely.get_actor("shelf"))
    assert plain.pid_of(remotely.get_actor("shelf")) == shelf.pid()


def test_every_special_method_of_a_handle_has_its_function() -> None:
    assert all(callable(getattr(FoundHandle, name)) for name in FORWARDED)
    assert _ASKED.keys() <= {*FORWARDED, "__call__"}


def test_a_stuck_actor_is_found_printed_compared_passed_on_and_killed(here: None) -> None:
    shelf, helper = remotely.options(Shelf, name="stuck")(), Shelf()
    pid = shelf.pid()
    freeze(pid)
    try:
        found = remotely.get_actor("stuck")
        assert repr(found) == "<handle of 'stuck'>"
        assert found == shelf
        assert hash(found) == hash(shelf)
        assert pickle.loads(pickle.dumps(found)) == shelf
        typed = remotely.get_actor("stuck", Shelf)
        late = typed.pid.submit()
        given = helper.give.submit(found, lambda: None)
        wait_until(lambda: not given.done(), "the call")
        remotely.kill(remotely.get_actor("stuck"))
        for call in (given, late):
            assert isinstance(call.exception(40), remotely.ActorDied)
    finally:
        with pytest.raises(ProcessLookupError):
            wait_until(lambda: os.kill(pid, signal.SIGCONT), "the end of the process")
