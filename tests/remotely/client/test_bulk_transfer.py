"""A client's results in stores, and its paths to machines."""

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from remotely.client import bulk_transfer
from remotely.client.bulk_transfer import MAX_THREADS, StoreLink, Stores, Trouble
from remotely.client.relay_plan import Path
from remotely.errors import NotConnected
from remotely.protocol import control
from remotely.protocol.control import BulkAddress, StoreAddress
from remotely.transport import sockets
from remotely.transport.keys import fresh_pair
from remotely.transport.loop import Loop
from remotely.values.payload import Parcel

HERE = StoreAddress(tcp="tcp://127.0.0.1:1", public_key=b"k" * 40)


class Link:
    """A fake link that records its messages."""

    made: list["Link"]

    def __init__(self, *given: Any) -> None:
        *_, self.address, self._on_choice = given
        self.is_broken = False
        self.path = Path.CHAIN
        self.bulk: BulkAddress | None = None
        self.sent: list[msgspec.Struct] = []
        self.made.append(self)

    def send(self, message: msgspec.Struct) -> None:
        self.sent.append(message)

    def set_path(self, path: Path, origin: BulkAddress | None = None) -> None:
        self.path = path
        self._on_choice(self, Trouble("of a test", origin=origin))

    def tell(self, trouble: Trouble) -> None:
        self._on_choice(self, trouble)

    @property
    def claimed(self) -> set[bytes]:
        return {message.value for message in self.sent if isinstance(message, control.Claim)}

    @property
    def released(self) -> list[bytes]:
        releases = [message for message in self.sent if isinstance(message, control.Release)]
        return [name for release in releases for name in release.values]


class Clock:
    """A loop whose timers run when the test calls `tick`."""

    def __init__(self) -> None:
        self._actions: list[Callable[[], None]] = []

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        self._actions.append(action)

    def call(self, action: Callable[[], None]) -> None:
        action()

    def tick(self) -> None:
        for action in self._actions:
            action()


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[Link]:
    Link.made = []
    monkeypatch.setattr(bulk_transfer, "StoreLink", Link)
    return Link.made


@pytest.fixture
def clock() -> Any:
    return Clock()


@pytest.fixture
def stores(clock: Any) -> Stores:
    anything: Any = None
    return Stores(anything, clock, anything, "here")


def result(name: bytes) -> Parcel:
    return Parcel(name, 1 << 20, [(0, 1 << 20)], BulkAddress("tcp://127.0.0.1:2", b"2" * 32))


def test_results_are_claimed_again_after_the_link_to_their_store_broke(
    links: list[Link], clock: Clock, stores: Stores
) -> None:
    kept, released = (stores.claim(result(name), HERE) for name in (b"1", b"2"))
    del released
    (first,) = links
    assert first.claimed == {b"1", b"2"}
    assert first.released == [b"2"]

    first.is_broken = True
    clock.tick()
    assert links[1].claimed == {b"1"}

    del kept
    links[1].is_broken = True
    clock.tick()
    assert len(links) == 2


def test_a_result_whose_link_broke_is_released_over_the_next_one(
    links: list[Link], clock: Clock, stores: Stores
) -> None:
    kept = stores.claim(result(b"1"), HERE)
    links[0].is_broken = True
    del kept
    clock.tick()
    assert len(links) == 1, "a link is not opened for that"

    other = stores.claim(result(b"2"), HERE)
    assert links[1].released == [b"1"]
    assert links[1].claimed == {other.parcel.value}


def test_a_result_is_claimed_and_released_in_a_store_that_values_do_not_reach(
    links: list[Link], clock: Clock, stores: Stores
) -> None:
    first = stores.claim(result(b"1"), HERE)
    links[0].set_path(Path.SOCKETS)

    second = stores.claim(result(b"2"), HERE)
    assert links[0].claimed == {b"1", b"2"}
    del first, second
    assert links[0].released == [b"1", b"2"]


def test_a_result_that_was_never_claimed_is_released_in_the_given_store(
    links: list[Link], stores: Stores
) -> None:
    stores.release(result(b"1"), None)
    assert links == []
    stores.release(result(b"1"), HERE)
    assert links[0].released == [b"1"]


def test_threads_that_call_at_the_same_time_share_one_link_to_a_store(
    links: list[Link], stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowLink(Link):
        def __init__(self, *given: Any) -> None:
            time.sleep(0.01)  # time for the others to make another link
            super().__init__(*given)

    monkeypatch.setattr(bulk_transfer, "StoreLink", SlowLink)
    with ThreadPoolExecutor(8) as threads:
        claimed = list(threads.map(lambda i: stores.claim(result(b"%d" % i), HERE), range(8)))
    assert len(claimed) == 8
    assert len(links) == 1
    assert len(links[0].claimed) == 8


def test_no_link_opens_after_the_end(links: list[Link], stores: Stores) -> None:
    stores.close()
    with pytest.raises(NotConnected, match="was shut down"):
        stores.claim(result(b"late"), HERE)
    assert not links


def test_nothing_is_fetched_from_an_unreachable_store(links: list[Link], stores: Stores) -> None:
    kept = stores.claim(result(b"1"), HERE)
    links[0].set_path(Path.SOCKETS)
    with pytest.raises(ConnectionRefusedError, match="unreachable"):
        stores.fetch(kept)


def test_a_machine_that_is_stopped_holds_up_no_other(links: list[Link], stores: Stores) -> None:
    continued, moved = threading.Event(), threading.Semaphore(0)
    there = StoreAddress(tcp="tcp://127.0.0.1:3", public_key=b"t" * 40)
    stopped: Any = SimpleNamespace(stores=frozenset((HERE,)), run=continued.wait)
    for _ in range(MAX_THREADS + 1):
        stores.run(stopped)
    for reached in (there,), (there, HERE):
        healthy: Any = SimpleNamespace(stores=frozenset(reached), run=moved.release)
        stores.run(healthy)
        assert moved.acquire(timeout=40)
    claimed = stores.claim(result(b"1"), HERE)
    stores.fetch_in_background(claimed, moved.release, moved.release)
    assert moved.acquire(timeout=40), "and no results"
    continued.set()


@pytest.mark.parametrize("is_silent", [False, True])
def test_ports_are_blamed_only_if_the_store_is_not_reached(
    links: list[Link], stores: Stores, caplog: pytest.LogCaptureFixture, is_silent: bool
) -> None:
    stores.claim(result(b"1"), HERE)
    links[0].path = Path.SOCKETS
    links[0].tell(Trouble("it does not answer", is_silent))
    (record,) = caplog.records
    assert ("ports" in record.getMessage()) is not is_silent
    assert ("stopped" in record.getMessage()) is is_silent


def test_each_change_of_a_path_is_reported_and_its_kind_logged_once(
    links: list[Link], stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    usable: list[bool] = []
    stores.on_choice = lambda store, is_usable: usable.append(is_usable)
    stores.claim(result(b"1"), HERE)
    (link,) = links
    with caplog.at_level(logging.WARNING, "remotely"):
        for _ in range(2):
            link.set_path(Path.DIRECT, BulkAddress("tcp://127.0.0.1:3", b"3" * 32))
            link.set_path(Path.SOCKETS)
            assert not stores.is_usable(HERE)
            link.set_path(Path.CHAIN)
    assert usable == [True, False, True] * 2
    direct, by_sockets = (record.getMessage() for record in caplog.records)
    assert "from the store at 127.0.0.1 port 3 to the store at 127.0.0.1 port 1" in direct
    assert "from here to" in by_sockets


def test_a_store_that_does_not_answer_is_retried_after_again_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_transfer, "AGAIN_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    loop, context, paths = Loop(), sockets.new_context(), []
    address = StoreAddress(tcp=closed, public_key=fresh_pair().public)
    link = StoreLink(
        context, loop, fresh_pair(), address, lambda link, why: paths.append(link.path)
    )
    heard: list[Any] = []
    link.expect(b"v" * 32, 1, lambda store, message: heard.append(message))

    while len(paths) < 2:
        loop.turn(5.0)

    assert paths == [Path.SOCKETS, Path.CHAIN]
    assert heard == [None]
    link.choose(Path.DIRECT, Trouble("it is too late"))
    loop.turn(0.0)
    assert link.path is Path.CHAIN
    loop.close()
    context.destroy(linger=0)


@pytest.mark.parametrize("join_s", [-1.0, 600.0])
def test_a_store_that_is_late_when_its_link_breaks_is_stopped_and_another_one_has_ended(
    monkeypatch: pytest.MonkeyPatch, join_s: float
) -> None:
    monkeypatch.setattr(bulk_transfer, "JOIN_S", join_s)
    loop, context, paths = Loop(), sockets.new_context(), []
    address = StoreAddress(tcp="tcp://127.0.0.1:1", public_key=fresh_pair().public)
    link = StoreLink(
        context, loop, fresh_pair(), address, lambda link, why: paths.append(link.path)
    )
    heard: list[Any] = []
    link.bulk = BulkAddress("tcp://127.0.0.1:2", b"2" * 32)  # it has answered before
    link.expect(b"v" * 32, 1, lambda store, message: heard.append(message))
    assert link.is_late is (join_s < 0)

    link.close()

    assert heard == [None]
    assert paths == ([Path.SOCKETS] if join_s < 0 else [])
    loop.close()
    context.destroy(linger=0)
