"""The numbers and names of the futures and refs that arguments refer to."""

from types import SimpleNamespace
from typing import Any

import pytest

from remotely.values import codec, payload, references
from remotely.values.codec import ReferenceTable, named_arguments
from remotely.values.owned import own
from remotely.values.payload import Parcel
from remotely.values.references import Referring
from tests.steps import steps


def test_things_are_numbered_by_identity() -> None:
    table = ReferenceTable([])
    assert list(table.things) == []
    one, equal = [1], [1]
    assert [table.number_of(thing) for thing in (one, equal, one, equal)] == [0, 1, 0, 1]
    things = list(table.things)
    assert things[0] is one
    assert things[1] is equal


def test_a_thing_is_named_after_the_first_argument_that_refers_to_it() -> None:
    first, second, within = object(), object(), object()
    has_second = SimpleNamespace(future=second)
    named = named_arguments(
        "f", (has_second, first, [within]), {"a": second, "b": first}, [first, second, within]
    )
    assert [name for _, name in named] == ["argument 2 of f", "argument 1 of f", "an argument of f"]
    assert [thing for thing, _ in named] == [first, second, within]
    ((_, name),) = named_arguments("f", (), {"a": first}, [first])
    assert name == "argument 'a' of f"


def test_naming_does_not_access_attributes_of_arguments() -> None:
    """An argument may be a handle, whose attributes are calls."""

    class Calls:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    first = object()
    ((_, name),) = named_arguments("f", (Calls(), first), {}, [first])
    assert name == "argument 2 of f"


def test_the_cost_is_linear_in_the_number_of_futures() -> None:
    def call(count: int) -> Any:
        things = [object() for _ in range(count)]
        table = ReferenceTable([])
        for thing in things:
            table.number_of(thing)
        return named_arguments("f", tuple(things), {}, table.things)

    assert steps(lambda: call(400)) < 2.2 * steps(lambda: call(200))


class Users:
    """An object of the user's, whose unpickling is noted."""

    unpickled = 0

    def __reduce__(self) -> Any:
        return Users.arrive, ()

    @staticmethod
    def arrive() -> str:
        Users.unpickled += 1
        return "the user's"


class Entry:
    """A future or a ref in a call's arguments."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return references.entry(self._number)


def test_entries_that_are_elsewhere_are_fetched_once_and_without_running_the_users_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched: list[Parcel] = []

    def fetch(parcel: Parcel) -> Any:
        fetched.append(parcel)
        return codec.encode(7).payload, ()

    monkeypatch.setattr(payload, "fetch_parcel", fetch)
    monkeypatch.setattr(Users, "unpickled", 0)
    arguments = own(codec.encode([Users(), Entry(0), Entry(1)]))
    elsewhere = Parcel(b"v", 1, [])
    sent = codec.encode(Referring(arguments, [Referring(own(codec.encode(Users()))), elsewhere]))
    assert references.refers(sent.payload)

    arrived = payload.fetch((sent.payload, sent.buffers))
    assert fetched == [elsewhere]
    assert Users.unpickled == 0
    assert arrived.decode() == ["the user's", "the user's", 7]
    assert fetched == [elsewhere]


def test_arguments_without_entries_do_not_refer_to_any() -> None:
    assert not references.refers(codec.encode((("x" * 100, 1.0), {})).payload)
    assert not references.refers(b"")
