"""The values that a store has: when they are here, dropped, and freed."""

from remotely.store.shelf import CLAIM_S, FETCHED, KEPT_S, Shelf
from remotely.values.arena import Borrower, Loan


class Room:
    def __init__(self, nbytes: int = 10) -> None:
        self.memory = memoryview(bytearray(nbytes))
        self.releases = 0

    def lend(self, borrower: Borrower) -> Loan | None:
        return None

    def release(self) -> None:
        self.releases += 1


def test_a_value_is_here_when_all_of_its_stripes_are() -> None:
    shelf, room = Shelf(), Room()
    assert shelf.add(b"v", room, "me", is_here=False)
    with shelf.using(b"v") as found:
        assert found is None
    with shelf.using(b"v", is_here=False) as value:
        assert value is not None
        assert not shelf.arrive(value, 0, 5)
        assert not shelf.arrive(value, 0, 5)  # the same stripe, from another relay
        assert shelf.arrive(value, 5, 5)
        assert not shelf.arrive(value, 5, 5)
    with shelf.using(b"v") as found:
        assert found is value


def test_memory_is_released_once_and_not_while_in_use() -> None:
    shelf, room = Shelf(), Room()
    shelf.add(b"v", room, "me", is_here=True)
    with shelf.using(b"v"):
        shelf.drop(b"v")
        assert room.releases == 0
    assert room.releases == 1
    shelf.drop(b"v")
    assert room.releases == 1


def test_the_values_of_a_lost_owner_are_dropped() -> None:
    shelf, mine, yours = Shelf(), Room(), Room()
    shelf.add(b"1", mine, "me", is_here=True)
    shelf.add(b"2", yours, "you", is_here=False)

    shelf.drop_of("me", 0.0)

    assert (mine.releases, yours.releases) == (1, 0)
    assert shelf.clients() == {"you"}


def test_results_stay_while_their_actor_lives_and_then_only_if_claimed() -> None:
    """The actor may die before it has sent the reply for the other result."""
    shelf, claimed, unclaimed = Shelf(), Room(), Room()
    shelf.add(b"1", claimed, "actor", is_here=True)
    shelf.add(b"2", unclaimed, "actor", is_here=True)
    shelf.claim(b"1", "my connection")
    shelf.tidy(10 * CLAIM_S)
    shelf.leave("actor", 1000.0)

    shelf.tidy(1000.0 + CLAIM_S)
    assert (claimed.releases, unclaimed.releases) == (0, 0)
    shelf.tidy(1000.1 + CLAIM_S)
    assert (claimed.releases, unclaimed.releases) == (0, 1)


def test_a_client_may_claim_again_after_it_has_reconnected() -> None:
    shelf, room = Shelf(), Room()
    shelf.add(b"v", room, "actor", is_here=True)
    shelf.claim(b"v", "my connection")
    shelf.leave("actor", 100.0)
    shelf.drop_of("my connection", 200.0)
    shelf.tidy(200.0 + CLAIM_S)
    shelf.claim(b"v", "another connection")
    shelf.tidy(1000.0)
    assert room.releases == 0
    assert "another connection" in shelf.clients()

    shelf.drop_of("another connection", 1000.0)
    shelf.tidy(1000.1 + CLAIM_S)
    assert room.releases == 1


def test_a_fetched_value_is_dropped_when_no_actor_asks_for_it() -> None:
    shelf, room = Shelf(), Room()
    shelf.add(b"v", room, FETCHED, is_here=True, now=1.0)
    shelf.tidy(1.0 + KEPT_S)
    assert room.releases == 0
    shelf.tidy(1.1 + KEPT_S)
    assert room.releases == 1


def test_a_second_value_of_the_same_name_is_refused_and_its_room_released() -> None:
    shelf, first, second = Shelf(), Room(), Room()
    assert shelf.add(b"v", first, "me", is_here=True)
    assert not shelf.add(b"v", second, "you", is_here=True)
    assert (first.releases, second.releases) == (0, 1)


def test_an_expected_value_that_does_not_arrive_is_stalled() -> None:
    shelf = Shelf()
    shelf.add(b"late", Room(), "me", is_here=False, now=1.0)
    shelf.add(b"new", Room(), "me", is_here=False, now=9.0)
    shelf.add(b"here", Room(), "me", is_here=True, now=1.0)

    assert [value.name for value in shelf.stalled(before=5.0)] == [b"late"]
