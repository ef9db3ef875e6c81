"""The values on a shelf: when they are here, who holds them, and when they are freed."""

from remotely.values.arena import Borrower, Loan
from remotely.values.shelf import Shelf

GRACE_S = 60.0


class Room:
    def __init__(self, nbytes: int = 10) -> None:
        self.memory = memoryview(bytearray(nbytes))
        self.releases = 0

    def lend(self, borrower: Borrower) -> Loan | None:
        return None

    def release(self) -> None:
        self.releases += 1


def a_shelf() -> Shelf[Room]:
    return Shelf()


def test_a_value_is_here_when_all_of_its_stripes_are() -> None:
    shelf, room = a_shelf(), Room()
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
    shelf, room = a_shelf(), Room()
    shelf.add(b"v", room, "me")
    with shelf.using(b"v"):
        shelf.drop(b"v")
        assert room.releases == 0
    assert room.releases == 1
    shelf.drop(b"v")
    assert room.releases == 1


def test_the_values_of_a_lost_holder_are_dropped() -> None:
    shelf, mine, yours = a_shelf(), Room(), Room()
    shelf.add(b"1", mine, "me")
    shelf.add(b"2", yours, "you", is_here=False)

    shelf.lost("me", 0.0)

    assert (mine.releases, yours.releases) == (1, 0)
    assert shelf.holders() == {"you"}


def test_results_stay_while_their_actor_lives_and_then_only_if_claimed() -> None:
    """The actor may die before it has sent the reply for the other result."""
    shelf, claimed, unclaimed = a_shelf(), Room(), Room()
    shelf.add(b"1", claimed, "actor", grace_s=GRACE_S)
    shelf.add(b"2", unclaimed, "actor", grace_s=GRACE_S)
    shelf.hold(b"1", "my connection")
    shelf.tidy(10 * GRACE_S)
    shelf.lost("actor", 1000.0)

    shelf.tidy(1000.0 + GRACE_S)
    assert (claimed.releases, unclaimed.releases) == (0, 0)
    shelf.tidy(1000.1 + GRACE_S)
    assert (claimed.releases, unclaimed.releases) == (0, 1)


def test_a_client_may_claim_again_after_it_has_reconnected() -> None:
    shelf, room = a_shelf(), Room()
    shelf.add(b"v", room, "actor", grace_s=GRACE_S)
    shelf.hold(b"v", "my connection")
    shelf.lost("actor", 100.0)
    shelf.lost("my connection", 200.0)
    shelf.tidy(200.0 + GRACE_S)
    shelf.hold(b"v", "another connection")
    shelf.tidy(1000.0)
    assert room.releases == 0
    assert "another connection" in shelf.holders()

    shelf.lost("another connection", 1000.0)
    shelf.tidy(1000.1 + GRACE_S)
    assert room.releases == 1


def test_a_value_without_a_holder_stays_for_its_time_of_grace() -> None:
    shelf, room = a_shelf(), Room()
    shelf.add(b"v", room, None, grace_s=5.0, now=1.0)
    shelf.tidy(6.0)
    assert room.releases == 0
    shelf.tidy(6.1)
    assert room.releases == 1


def test_a_value_that_is_dropped_is_gone_whoever_holds_it() -> None:
    shelf, room = a_shelf(), Room()
    shelf.add(b"v", room, "actor", grace_s=GRACE_S)
    shelf.hold(b"v", "my connection")
    shelf.drop(b"v")
    assert room.releases == 1
    shelf.lost("actor", 1.0)
    shelf.hold(b"v", "another connection")
    assert not shelf.holders()


def test_a_second_value_of_the_same_name_is_refused_and_its_room_released() -> None:
    shelf, first, second = a_shelf(), Room(), Room()
    assert shelf.add(b"v", first, "me")
    assert not shelf.add(b"v", second, "you")
    assert (first.releases, second.releases) == (0, 1)


def test_an_expected_value_that_does_not_arrive_is_stalled() -> None:
    shelf = a_shelf()
    shelf.add(b"late", Room(), "me", is_here=False, now=1.0)
    shelf.add(b"new", Room(), "me", is_here=False, now=9.0)
    shelf.add(b"here", Room(), "me", now=1.0)

    assert [value.name for value in shelf.stalled(before=5.0)] == [b"late"]
