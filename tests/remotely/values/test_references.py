"""How what arguments refer to is numbered and named."""

from types import SimpleNamespace
from typing import Any

from remotely.values.codec import ReferenceTable, named_arguments
from tests.steps import steps


def test_each_thing_has_one_number_by_what_it_is_and_not_by_what_it_equals() -> None:
    table = ReferenceTable([])
    assert list(table.things) == []
    one, equal = [1], [1]
    assert [table.number_of(thing) for thing in (one, equal, one, equal)] == [0, 1, 0, 1]
    assert [thing is known for thing, known in zip((one, equal), table.things, strict=True)] == [
        True,
        True,
    ]


def test_a_thing_is_named_by_the_first_argument_that_is_it_or_has_it_for_its_future() -> None:
    first, second, within = object(), object(), object()
    has_second = SimpleNamespace(future=second)
    named = named_arguments(
        "f", (has_second, first, [within]), {"a": second, "b": first}, [first, second, within]
    )
    assert [name for _, name in named] == ["argument 2 of f", "argument 1 of f", "an argument of f"]
    assert [
        thing is known for (thing, _), known in zip(named, (first, second, within), strict=True)
    ]
    ((_, name),) = named_arguments("f", (), {"a": first}, [first])
    assert name == "argument 'a' of f"


def test_naming_runs_no_code_of_an_argument() -> None:
    """It may be a handle, whose attributes are calls."""

    class Calls:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"it was asked for {name}")

    first = object()
    ((_, name),) = named_arguments("f", (Calls(), first), {}, [first])
    assert name == "argument 2 of f"


def test_a_call_with_twice_the_futures_costs_twice_as_much() -> None:
    def call(count: int) -> Any:
        things = [object() for _ in range(count)]
        table = ReferenceTable([])
        for thing in things:
            table.number_of(thing)
        return named_arguments("f", tuple(things), {}, table.things)

    assert steps(lambda: call(400)) < 2.2 * steps(lambda: call(200))
