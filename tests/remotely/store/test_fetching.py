"""What a store fetches is kept while its actors ask; what an actor offers there, until its end."""

import pytest

from remotely.protocol.control import BulkAddress
from remotely.store import fetching
from remotely.store.fetching import Fetching
from remotely.store.shelf import Shelf
from remotely.transport import bulk
from tests.remotely.store.test_shelf import Room

OWN = BulkAddress("tcp://127.0.0.1:1", b"1" * 32)
OTHER = BulkAddress("tcp://127.0.0.1:2", b"2" * 32)


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was asked for, was so long ago."""
    monkeypatch.setattr(fetching, "KEPT_S", -1.0)


def test_a_result_that_an_actor_of_this_machine_took_stays_until_its_owner_drops_it() -> None:
    shelf, room = Shelf(), Room()
    shelf.add(b"v", room, "actor", is_here=True)
    found = Fetching(shelf, OWN)

    assert found.fetch(b"v", 10, OWN) is None
    found.tidy()

    assert room.releases == 0
    shelf.drop(b"v")
    assert room.releases == 1


def test_what_was_fetched_and_is_not_asked_for_any_more_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf = Shelf()
    found = Fetching(shelf, OWN)
    monkeypatch.setattr(fetching.rooms, "reserve", Room)
    monkeypatch.setattr(bulk, "fetch", lambda *_: None)

    assert found.fetch(b"v", 10, OTHER) is None
    assert len(shelf) == 1
    found.tidy()

    assert len(shelf) == 0
