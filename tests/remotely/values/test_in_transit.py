"""Objects in transit are collected while pickling, and kept until they have arrived."""

import weakref
from collections.abc import Iterator

import pytest

from remotely.values import in_transit
from remotely.values.in_transit import KEEP_S


class Thing:
    arrived = False

    def has_arrived(self) -> bool:
        return self.arrived


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    in_transit.forget()
    yield
    in_transit.forget()


def test_a_collection_has_what_is_noted_within_it() -> None:
    first, second, third = Thing(), Thing(), Thing()
    in_transit.note([first])
    with in_transit.collected() as outer:
        in_transit.note([first])
        with in_transit.collected() as inner:
            in_transit.note([second])
        in_transit.note([third])
    assert (outer, inner) == ([first, third], [second])


def test_an_error_ends_a_collection() -> None:
    thing = Thing()
    with in_transit.collected() as outer:
        with pytest.raises(ZeroDivisionError), in_transit.collected():
            raise ZeroDivisionError
        in_transit.note([thing])
    assert outer == [thing]


def test_arrived_objects_are_dropped_and_the_others_kept() -> None:
    things = [Thing(), Thing()]
    first, second = map(weakref.ref, things)
    in_transit.keep_result(things, 100.0)
    things[0].arrived = True
    things.clear()
    in_transit.tidy(101.0)
    assert first() is None
    assert second() is not None


def test_objects_are_kept_for_at_most_keep_s() -> None:
    things = [Thing()]
    (thing,) = map(weakref.ref, things)
    in_transit.keep_result(things, 100.0)
    things.clear()
    in_transit.tidy(100.0 + KEEP_S - 0.001)
    assert thing() is not None
    in_transit.tidy(100.0 + KEEP_S)
    assert thing() is None
