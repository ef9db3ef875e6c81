"""The network faults of the relay."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.relay import LOOK_S, Relay


class Sky:
    """A relay before an echo, and a connection through it."""

    def __init__(self) -> None:
        self.weather = "pass"
        self.relay = Relay(lambda: self.weather)
        self._echo = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        self.address = self.relay.through(f"tcp://127.0.0.1:{self._echo.getsockname()[1]}")
        self.connection = self.connect()

    def connect(self) -> socket.socket:
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        connection = socket.create_connection((host, int(port)))
        connection.settimeout(0.3)
        return connection

    def hears(self, data: bytes, within_s: float = 5.0) -> bytes:
        """Send, and return what comes back within the time."""
        self.connection.settimeout(within_s)
        self.connection.sendall(data)
        got = b""
        while len(got) < len(data):
            try:
                piece = self.connection.recv(1000)
            except TimeoutError:
                break
            if not piece:
                break
            got += piece
        return got

    def close(self) -> None:
        self.connection.close()
        self._echo.close()
        self.relay.close()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._echo.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            while data := peer.recv(1000):
                peer.sendall(data)


@pytest.fixture
def sky() -> Iterator[Sky]:
    made = Sky()
    yield made
    made.close()


def test_without_faults_everything_arrives(sky: Sky) -> None:
    assert sky.hears(b"x" * 5000) == b"x" * 5000


@pytest.mark.parametrize("weather", ["full", "up", "down"])
def test_a_connection_that_lost_bytes_is_reset(sky: Sky, weather: str) -> None:
    """TCP has no gaps: lost bytes are retransmitted, or nothing follows."""
    assert sky.hears(b"before") == b"before"
    sky.weather = weather
    assert sky.hears(b"lost", within_s=0.3) == b""
    sky.weather = "pass"
    sky.connection.settimeout(5.0)
    with pytest.raises(ConnectionResetError):
        sky.connection.recv(1000)
    sky.connection.close()
    sky.connection = sky.connect()
    assert sky.hears(b"after") == b"after"


@pytest.mark.parametrize("weather", ["full", "up", "down"])
def test_a_connection_that_lost_nothing_survives(sky: Sky, weather: str) -> None:
    assert sky.hears(b"before") == b"before"
    sky.weather = weather
    time.sleep(3 * LOOK_S)  # nothing is sent meanwhile
    sky.weather = "pass"
    assert sky.hears(b"after") == b"after"


def test_a_stall_delays_but_loses_nothing(sky: Sky) -> None:
    assert sky.hears(b"before") == b"before"
    sky.weather = "stall"
    assert sky.hears(b"late", within_s=0.3) == b""
    sky.weather = "pass"
    assert sky.hears(b"more").startswith(b"late")


def test_a_delay_applies_in_each_direction(sky: Sky) -> None:
    sky.weather = "delay=100"
    begun = time.monotonic()
    assert sky.hears(b"later") == b"later"
    assert time.monotonic() - begun > 0.2


def test_a_cut_happens_after_the_given_number_of_bytes(sky: Sky) -> None:
    assert sky.hears(b"before") == b"before"
    sky.weather = "cut=3"
    with pytest.raises(ConnectionResetError):
        _ = [sky.hears(b"abcdef") for _ in range(100)]


def test_a_missing_target_is_a_reset(sky: Sky) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sky.address = sky.relay.through(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        sky.connection.close()
        sky.connection = sky.connect()
        with pytest.raises(ConnectionResetError):
            sky.hears(b"anybody?")


def test_a_local_address_is_left_unchanged(sky: Sky) -> None:
    assert sky.relay.through("ipc:///tmp/x") == "ipc:///tmp/x"
