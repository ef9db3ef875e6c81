"""The values on a shelf: when they are here, who holds them, and when their memory is free."""

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from remotely.values.arena import Borrower, Loan
from remotely.values.shelf import Shelf

GRACE_S = 60.0


class Room:
    def __init__(self, nbytes: int = 10) -> None:
        self.memory = memoryview(bytearray(nbytes))

    def lend(self, borrower: Borrower) -> Loan | None:
        return None


def kept(room: Room) -> Callable[[], bool]:
    """Return a function that tells whether anything refers to a room."""
    reference = weakref.ref(room)
    return lambda: reference() is not None


@pytest.fixture
def shelf() -> Shelf[Room]:
    return Shelf()


def add(
    shelf: Shelf[Room], name: bytes, holder: Hashable | None, **more: Any
) -> Callable[[], bool]:
    """Add a value, and return a function that tells whether its memory is kept."""
    room = Room()
    assert shelf.add(name, room, holder, **more)
    return kept(room)


def test_a_value_is_here_when_all_of_its_stripes_are(shelf: Shelf[Room]) -> None:
    add(shelf, b"v", "me", is_here=False)
    assert shelf.get(b"v") is None
    value = shelf.get(b"v", is_here=False)
    assert value is not None
    assert not shelf.arrive(value, 0, 5)
    assert not shelf.arrive(value, 0, 5)  # the same stripe, from another relay
    assert shelf.arrive(value, 5, 5)
    assert not shelf.arrive(value, 5, 5)
    assert shelf.get(b"v") is value


def test_memory_is_free_when_a_value_is_dropped_and_no_thread_uses_it(shelf: Shelf[Room]) -> None:
    is_kept = add(shelf, b"v", "me")
    value = shelf.get(b"v")
    shelf.drop(b"v")
    assert value is not None
    assert value.is_dropped
    assert is_kept()
    del value
    assert not is_kept()
    shelf.drop(b"v")


def test_the_values_of_a_lost_holder_are_dropped(shelf: Shelf[Room]) -> None:
    mine, yours = add(shelf, b"1", "me"), add(shelf, b"2", "you", is_here=False)
    shelf.lost("me", 0.0)
    assert (mine(), yours()) == (False, True)
    assert shelf.holders() == {"you"}


def test_results_stay_while_their_actor_lives_and_then_only_if_claimed(shelf: Shelf[Room]) -> None:
    """The actor may die before it has sent the reply for the other result."""
    claimed, unclaimed = (add(shelf, name, "actor", grace_s=GRACE_S) for name in (b"1", b"2"))
    shelf.hold(b"1", "my connection")
    shelf.tidy(10 * GRACE_S)
    shelf.lost("actor", 1000.0)

    shelf.tidy(1000.0 + GRACE_S)
    assert (claimed(), unclaimed()) == (True, True)
    shelf.tidy(1000.1 + GRACE_S)
    assert (claimed(), unclaimed()) == (True, False)


def test_a_client_may_claim_again_after_it_has_reconnected(shelf: Shelf[Room]) -> None:
    is_kept = add(shelf, b"v", "actor", grace_s=GRACE_S)
    shelf.hold(b"v", "my connection")
    shelf.lost("actor", 100.0)
    shelf.lost("my connection", 200.0)
    shelf.tidy(200.0 + GRACE_S)
    shelf.hold(b"v", "another connection")
    shelf.tidy(1000.0)
    assert is_kept()
    assert "another connection" in shelf.holders()

    shelf.lost("another connection", 1000.0)
    shelf.tidy(1000.1 + GRACE_S)
    assert not is_kept()


def test_a_value_without_a_holder_stays_for_its_time_of_grace(shelf: Shelf[Room]) -> None:
    is_kept = add(shelf, b"v", None, grace_s=5.0, now=1.0)
    shelf.tidy(6.0)
    assert is_kept()
    shelf.tidy(6.1)
    assert not is_kept()


def test_a_value_that_is_dropped_is_gone_whoever_holds_it(shelf: Shelf[Room]) -> None:
    is_kept = add(shelf, b"v", "actor", grace_s=GRACE_S)
    shelf.hold(b"v", "my connection")
    shelf.drop(b"v")
    assert not is_kept()
    shelf.lost("actor", 1.0)
    shelf.hold(b"v", "another connection")
    assert not shelf.holders()


def test_a_second_value_of_the_same_name_is_refused(shelf: Shelf[Room]) -> None:
    first = add(shelf, b"v", "me")
    second = Room()
    assert not shelf.add(b"v", second, "you")
    is_kept = kept(second)
    del second
    assert (first(), is_kept()) == (True, False)


def test_an_expected_value_that_does_not_arrive_is_stalled(shelf: Shelf[Room]) -> None:
    add(shelf, b"late", "me", is_here=False, now=1.0)
    add(shelf, b"new", "me", is_here=False, now=9.0)
    add(shelf, b"here", "me", now=1.0)

    assert [value.name for value in shelf.stalled(before=5.0)] == [b"late"]
