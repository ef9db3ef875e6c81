"""What a pickle needs until it has been read is collected, and kept for as long."""

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


def kept() -> list[object]:
    return [thing for _, thing in in_transit._kept]


def test_only_what_is_noted_within_a_collection_is_in_it() -> None:
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


def test_what_has_arrived_is_dropped_and_the_rest_kept() -> None:
    first, second = Thing(), Thing()
    in_transit.keep_result([first, second], 100.0)
    first.arrived = True
    in_transit.tidy(101.0)
    assert kept() == [second]


def test_nothing_is_kept_for_longer_than_keep_s() -> None:
    thing = Thing()
    in_transit.keep_result([thing], 100.0)
    in_transit.tidy(100.0 + KEEP_S - 0.001)
    assert kept() == [thing]
    in_transit.tidy(100.0 + KEEP_S)
    assert kept() == []
