"""The link to the master: refused keys and cut handshakes."""

import contextlib
import dataclasses
import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from remotely.errors import NotAllowed, RemotelyError
from remotely.protocol import control
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import sockets
from remotely.transport.keys import MasterKey, MemberKey, fresh_keys
from remotely.transport.loop import Loop
from remotely.transport.master_link import CUT_AGAIN_S, MasterLink


class Place:
    """An address with a master, or with a listener that cuts connections; and links to it."""

    def __init__(self) -> None:
        self.port = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.port.getsockname()[1]}"
        self.loop, self.context = Loop(), sockets.new_context()
        self.refused: list[RemotelyError] = []
        self.arrived: list[bytes] = []
        self.connections: list[bool] = []  # made, and broken
        self.links: list[MasterLink] = []

    def connect(self, key: MemberKey) -> None:
        self.links.append(
            MasterLink(
                self.loop,
                self.context,
                self.address,
                key,
                control.Beat,
                lambda message: None,
                self.refused.append,
                on_connection=self.connections.append,
            )
        )

    def cuts(self) -> None:
        """Accept a connection, and close it before the handshake."""
        self.port.setblocking(False)
        taken: list[socket.socket] = []

        def take() -> bool:
            try:
                taken.append(self.port.accept()[0])
            except BlockingIOError:
                return False
            return True

        self.until(take)
        taken[0].close()

    def has_master(self, key: MasterKey) -> None:
        """Start a master at the address."""
        self.port.close()
        self.role: str | None = "client"  # of every key
        self.asked = 0
        zap = sockets.ZapHandler(self.context, self.role_of, ThrottledLog(print))
        self.loop.watch_socket(zap.socket, zap.answer)
        self.serves(key)

    def role_of(self, key: bytes) -> str | None:
        self.asked += 1
        return self.role

    def serves(self, key: MasterKey) -> None:
        self.server = sockets.server(self.context, key.pair)
        self.loop.watch_socket(self.server, lambda frames: self.arrived.append(frames[1].bytes))
        sockets.bind(self.server, self.address)

    def loses_connections(self, key: MasterKey) -> None:
        self.loop.unwatch_socket(self.server)
        self.server.close(linger=0)
        self.until(lambda: not is_bound(self.address))
        self.serves(key)

    def until(self, fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not fact():
            assert time.monotonic() < deadline
            self.loop.turn(0.01)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.port.close()
        self.context.destroy(linger=0)
        self.loop.close()


def is_bound(address: str) -> bool:
    host, port = address.removeprefix("tcp://").split(":")
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((host, int(port))):
        return True
    return False


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


def test_a_connection_that_breaks_and_one_that_is_back_are_told_at_once(place: Place) -> None:
    master, client, _, _ = fresh_keys()
    place.has_master(master)
    place.connect(client)
    place.until(lambda: place.connections == [True])
    place.loses_connections(master)
    place.until(lambda: place.connections == [True, False, True])
    assert place.refused == []


def test_a_cut_handshake_is_retried(place: Place) -> None:
    """For example because the master ends, or a firewall's table is full."""
    master, client, _, _ = fresh_keys()
    place.connect(client)
    place.cuts()
    place.has_master(master)
    place.until(lambda: place.arrived)
    assert place.refused == []


def test_occasionally_cut_handshakes_are_no_refusal(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client, _, _ = fresh_keys()
    place.connect(client)
    (link,) = place.links
    now = 0.0
    monkeypatch.setattr("remotely.transport.master_link.time.monotonic", lambda: now)

    def is_cut() -> None:
        for event in (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_DISCONNECTED):
            link._handle_handshake([zmq.Frame(event.to_bytes(2, sys.byteorder))])

    for _ in range(5):
        now += CUT_AGAIN_S + 1
        is_cut()
    assert not place.refused
    is_cut()
    is_cut()
    assert place.refused


def test_repeatedly_cut_handshakes_are_a_refusal(place: Place) -> None:
    _, client, _, _ = fresh_keys()
    place.has_master(fresh_keys()[0])
    place.connect(client)
    place.until(lambda: place.refused)
    assert isinstance(place.refused[0], NotAllowed)
    assert "for another cluster, or 127" in str(place.refused[0])
    assert not place.arrived


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remotely.transport.master_link.BEAT_EVERY_S", 0.02)


def test_a_key_that_is_revoked_while_the_connection_is_broken_is_refused(
    place: Place, quick: None
) -> None:
    master, client, _, _ = fresh_keys()
    place.has_master(master)
    place.connect(dataclasses.replace(client, file="client.key"))
    place.until(lambda: place.arrived)
    place.role = None
    place.loses_connections(master)
    place.until(lambda: place.refused)
    assert "refused this key (client.key): it was revoked" in str(place.refused[0])
    asked = place.asked
    for _ in range(20):
        place.links[0]._send_beat()
        place.loop.turn(0.005)
    assert place.asked == asked
    assert len(place.refused) == 1


def test_the_key_of_an_actor_waits_for_a_restarted_master_to_know_it(
    place: Place, quick: None
) -> None:
    master, client, _, _ = fresh_keys()
    place.has_master(master)
    place.connect(client)
    place.until(lambda: place.arrived)
    place.role, place.asked = None, 0
    place.loses_connections(master)
    place.until(lambda: place.asked > 2)
    place.role = "client"
    place.arrived.clear()
    place.until(lambda: place.arrived)
    assert not place.refused
