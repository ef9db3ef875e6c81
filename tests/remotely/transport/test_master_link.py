"""The link to the master: refused keys and cut handshakes."""

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
        zap = sockets.ZapHandler(self.context, lambda key: "client", ThrottledLog(print))
        self.loop.watch_socket(zap.socket, zap.answer)
        server = sockets.server(self.context, key.pair)
        self.loop.watch_socket(server, lambda frames: self.arrived.append(frames[1].bytes))
        sockets.bind(server, self.address)

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


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


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
