"""The numbers and names of the futures and refs that arguments refer to."""

from types import SimpleNamespace
from typing import Any

from remotely.values.codec import ReferenceTable, named_arguments
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
