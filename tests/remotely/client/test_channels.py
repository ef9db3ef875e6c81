"""The end of a client's channels, which threads may be opening meanwhile."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from remotely.client import channels
from remotely.client.channels import Channels
from remotely.errors import NotConnected

DEADLINE_S = 40.0


class FakeChannel:
    """A channel that takes until `may_open` to open."""

    opening, may_open = threading.Event(), threading.Event()

    def __init__(self, *_: object) -> None:
        self.ended = False
        self.is_near = True
        self.opening.set()
        assert self.may_open.wait(DEADLINE_S)

    def introduce(self, fetches: bool) -> None:
        assert not fetches, "it is on this machine"

    def end_without_loop(self, _: object) -> None:
        self.ended = True

    def unfinished(self) -> list[str]:
        return []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Channels:
    FakeChannel.opening, FakeChannel.may_open = threading.Event(), threading.Event()
    monkeypatch.setattr(channels, "Channel", FakeChannel)
    session, stores = SimpleNamespace(loop=None, host="here"), SimpleNamespace()
    shared: Any = SimpleNamespace(session=session, stores=stores)
    return Channels(shared)


def open_one(opened: Channels) -> Any:
    """Open the channel of an actor of this host."""
    location: Any = SimpleNamespace(host="here")
    actor: Any = SimpleNamespace(
        name="Actor-1", opening=None, location=location, set_location=lambda *_: None
    )
    return opened.open(actor, location)


def test_the_end_waits_for_a_channel_that_is_being_opened(opened: Channels) -> None:
    """Its socket must exist, and be closed, before the session destroys the context."""
    made: list[Any] = []
    opener = threading.Thread(target=lambda: made.append(open_one(opened)), daemon=True)
    ender = threading.Thread(target=opened.end_all, daemon=True)
    opener.start()
    assert FakeChannel.opening.wait(DEADLINE_S)
    ender.start()
    FakeChannel.may_open.set()
    for thread in (opener, ender):
        thread.join(DEADLINE_S)
    assert [channel.ended for channel in made] == [True]


def test_no_channel_opens_after_the_end(opened: Channels) -> None:
    opened.end_all()
    with pytest.raises(NotConnected, match="was shut down"):
        open_one(opened)
    assert not FakeChannel.opening.is_set()
