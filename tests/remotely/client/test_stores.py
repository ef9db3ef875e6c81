"""What a client holds in stores; the links to them are played."""

from collections.abc import Callable
from typing import Any

import pytest

from remotely.client import stores
from remotely.client.stores import Stores
from remotely.protocol.control import StoreAddress
from remotely.values.parcel import Parcel

HERE = StoreAddress(tcp="tcp://127.0.0.1:1", public_key=b"k" * 40)


class Link:
    """Notes what is claimed on it."""

    made: list["Link"]

    def __init__(self, *given: Any) -> None:
        *_, self.address, self._broken = given
        self.is_broken = False
        self.claimed: set[bytes] = set()
        self.made.append(self)

    def claim(self, value: bytes) -> None:
        self.claimed.add(value)

    def break_(self) -> None:
        self.is_broken = True
        self._broken(self)


class Clock:
    """A loop whose timers the test runs."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        self._actions.append(action)

    def call(self, action: Callable[[], None]) -> None: ...

    def pass_(self) -> None:
        for action in self._actions:
            action()


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[Link]:
    Link.made = []
    monkeypatch.setattr(stores, "StoreLink", Link)
    return Link.made


def result(name: bytes) -> Parcel:
    return Parcel(name, 1 << 20, [(0, 1 << 20)])


def test_what_is_held_in_a_store_is_claimed_again_when_the_link_to_it_broke(
    links: list[Link],
) -> None:
    clock: Any = Clock()
    held: Any = Stores(None, clock, None, "here")  # type: ignore[arg-type]
    kept, released = result(b"1"), result(b"2")
    held.claim(kept, HERE)
    held.claim(released, HERE)
    held.release(released)
    clock.pass_()
    (first,) = links
    assert first.claimed == {b"1", b"2"}

    first.break_()
    clock.pass_()
    assert links[1].claimed == {b"1"}

    held.release(kept)
    links[1].break_()
    clock.pass_()
    assert len(links) == 2
