"""The relay of a worker, a guest's side of it, and splices, on sockets and loops."""

import contextlib
import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from remotely.errors import WorkerLost
from remotely.protocol.address import parse_address
from remotely.protocol.lease import ACCEPT_AGAIN_S
from remotely.protocol.listening import Listening
from remotely.transport import relay as relay_module
from remotely.transport.listening import listen_for_bytes
from remotely.transport.loop import Loop
from remotely.transport.relay import (
    BEFORE_KEY_BYTES,
    MOST_STRANGERS,
    PIECE_BYTES,
    PROOF_BYTES,
    TICKET_BYTES,
    Home,
    RelayServer,
    prove,
)
from tests.clusters import free_port

TURNS = 5_000
ASK = bytes(TICKET_BYTES)
LARGE = bytes(range(256)) * (40 * PIECE_BYTES // 256)  # more than the kernel buffers


class Ends:
    """A relay, an admitted guest, and the socket on which its object receives calls."""

    def __init__(self, folder: Path) -> None:
        self.loop, self.guests_loop = Loop(), Loop()
        self.running = [self.loop, self.guests_loop]  # loops of processes that are not stopped
        self.left: list[None] = []
        self.lost: list[str] = []
        self.relay = RelayServer(
            self.loop, Listening(host="127.0.0.1"), lambda: self.left.append(None)
        )
        self.served = socket.socket(socket.AF_UNIX)
        self.served.bind(str(folder / "calls"))
        self.served.listen(2 * MOST_STRANGERS)
        self.served.setblocking(False)
        self.open: list[socket.socket] = [self.served]
        self.home = self.connect_guest(str(folder / "calls"))

    def connect_guest(self, path: str) -> Home:
        """Connect a guest on a thread, while the relay answers."""
        made: list[Home] = []
        given = self.guests_loop, self.relay.address, self.relay.token, path, self.lost.append
        thread = threading.Thread(target=lambda: made.append(Home(*given)))
        self.running.remove(self.guests_loop)
        thread.start()
        self.turn_until(lambda: made)
        thread.join()
        self.running.append(self.guests_loop)
        return made[0]

    def turn_until(self, fact: Callable[[], object]) -> None:
        for _ in range(TURNS):
            if fact():
                return
            self.turn()
        raise AssertionError("timed out")

    def turn(self) -> None:
        for loop in self.running:
            loop.turn(0.002)

    def connect(self) -> socket.socket:
        """Return the connection of a caller."""
        caller = socket.create_connection(parse_address(self.home.endpoints))
        caller.setblocking(False)
        self.open.append(caller)
        return caller

    def show(self, shown: bytes) -> socket.socket:
        """Return a connection to the relay's own port on which `shown` was sent."""
        end = socket.create_connection(parse_address(self.relay.address))
        self.open.append(end)
        end.setblocking(False)
        end.sendall(shown)
        return end

    def receive(self, end: socket.socket, size: int) -> bytes:
        self.turn_until(lambda: (data := peek(end)) and len(data) >= size)
        return end.recv(size)

    def accept(self) -> socket.socket:
        """Return the object's end of a caller's connection."""
        found: list[socket.socket] = []

        def look() -> bool:
            try:
                found.append(self.served.accept()[0])
            except BlockingIOError:
                return False
            return True

        self.turn_until(look)
        found[0].setblocking(False)
        self.open += found
        return found[0]

    def forward(self, data: bytes, source: socket.socket, target: socket.socket) -> None:
        """Send all data, and check that it arrives."""
        sent, received = 0, bytearray()

        def move() -> bool:
            nonlocal sent
            try:
                sent += source.send(data[sent:]) if sent < len(data) else 0
            except BlockingIOError:
                pass
            received.extend(read(target) or b"")
            return len(received) == len(data)

        self.turn_until(move)
        assert received == data

    def close(self) -> None:
        for end in self.open:
            end.close()
        self.home.close()
        self.relay.close()
        self.loop.close()
        self.guests_loop.close()


def read(end: socket.socket) -> bytes | None:
    """Return what has arrived; empty at the end, None if there is nothing yet."""
    try:
        return end.recv(PIECE_BYTES)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""


def is_cut_off(end: socket.socket) -> bool:
    """Send a byte; return whether the other end is closed, not only shut for writing."""
    try:
        end.send(b"x")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def peek(end: socket.socket) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return end.recv(PIECE_BYTES, socket.MSG_PEEK)
    return b""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    with tempfile.TemporaryDirectory() as folder:
        made = Ends(Path(folder))
        yield made
        made.close()


def test_bytes_and_the_end_are_forwarded_both_ways(ends: Ends) -> None:
    caller = ends.connect()
    served = ends.accept()
    ends.forward(LARGE, caller, served)
    ends.forward(LARGE, served, caller)
    caller.close()
    ends.turn_until(lambda: read(served) == b"")


def test_a_caller_that_does_not_read_blocks_no_other(ends: Ends) -> None:
    ends.connect()
    to_slow = ends.accept()
    quick = ends.connect()
    to_quick = ends.accept()
    blocked = 0

    def is_full() -> bool:
        nonlocal blocked
        try:
            to_slow.send(LARGE)
            blocked = 0
        except BlockingIOError:
            blocked += 1
        return blocked == 20

    ends.turn_until(is_full)
    ends.forward(b"quick", quick, to_quick)


def test_data_sent_before_an_object_closes_arrives(ends: Ends) -> None:
    caller = ends.connect()
    served = ends.accept()
    served.sendall(b"the last reply")
    caller.sendall(b"one more call")  # never read
    served.close()
    received = bytearray()

    def has_ended() -> bool:
        data = read(caller)
        received.extend(data or b"")
        return data == b""

    ends.turn_until(has_ended)
    assert received == b"the last reply"


def test_the_end_of_a_guest_closes_its_port_but_not_its_splices(ends: Ends) -> None:
    ends.home.close()
    ends.turn_until(lambda: ends.left)
    home = ends.show(ASK)
    home.sendall(prove(ends.relay.token, ends.receive(home, TICKET_BYTES)))
    ends.home.endpoints = ends.receive(home, int.from_bytes(ends.receive(home, 2))).decode()
    caller = ends.connect()
    while (ticket := ends.receive(home, TICKET_BYTES)) == bytes(TICKET_BYTES):  # a beat
        pass
    ours = ends.show(ticket)
    ends.forward(b"begun", ours, caller)
    home.close()
    ends.turn_until(lambda: len(ends.left) == 2)
    ends.forward(LARGE, ours, caller)
    with pytest.raises(ConnectionRefusedError):
        ends.connect()


def test_a_silent_relay_is_lost(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "BEAT_EVERY_S", 0.02)
    monkeypatch.setattr(relay_module, "LEASE_S", 1.0)
    ends.home.close()
    ends.turn_until(lambda: ends.left)
    ends.home = ends.connect_guest("")
    begun = time.monotonic()
    ends.turn_until(lambda: time.monotonic() > begun + 1.1)
    assert ends.lost == []
    ends.running.remove(ends.loop)
    ends.turn_until(lambda: ends.lost)
    ends.running.append(ends.loop)
    assert "has been silent" in ends.lost[0]


def test_a_connection_without_proof_or_ticket_is_closed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "HANDSHAKE_S", 0.05)
    for shown in (b"GET / HTTP/1.0\r\n\r\n", ends.relay.token, b"x", b""):
        stranger = ends.show(shown)
        ends.turn_until(lambda end=stranger: read(end) == b"")  # type: ignore[misc]
    silent = ends.show(ASK)
    ends.receive(silent, TICKET_BYTES)
    ends.turn_until(lambda: read(silent) == b"")


def test_an_answer_cannot_be_replayed(ends: Ends) -> None:
    guest = ends.show(ASK)
    answer = prove(ends.relay.token, ends.receive(guest, TICKET_BYTES))
    guest.sendall(answer)
    assert ends.relay.token not in answer
    assert ends.receive(guest, 2) != b""  # it is admitted
    for shown in (answer, ends.relay.token * 2, bytes(PROOF_BYTES)):
        stranger = ends.show(ASK)
        ends.receive(stranger, TICKET_BYTES)
        stranger.sendall(shown)
        ends.turn_until(lambda end=stranger: read(end) == b"")  # type: ignore[misc]


def test_the_splices_of_one_guest_are_limited(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "MOST_OF_A_GUEST", 2)
    callers = [ends.connect() for _ in range(2)]
    for served in [ends.accept() for _ in callers]:
        served.sendall(bytes(BEFORE_KEY_BYTES + 1))
    for caller in callers:
        ends.receive(caller, BEFORE_KEY_BYTES + 1)  # the object has admitted both
    further = ends.connect()
    ends.turn_until(lambda: read(further) == b"")
    other = ends.show(ASK)
    other.sendall(prove(ends.relay.token, ends.receive(other, TICKET_BYTES)))
    ends.home.endpoints = ends.receive(other, int.from_bytes(ends.receive(other, 2))).decode()
    of_other = ends.connect()
    while not any(ends.receive(other, TICKET_BYTES)):  # a beat
        pass
    assert read(of_other) is None


def test_unidentified_connections_are_limited(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "HANDSHAKE_S", 60.0)
    monkeypatch.setattr(relay_module, "MOST_UNKNOWN", 3)
    strangers = [ends.show(b"") for _ in range(5)]
    ends.turn_until(lambda: [read(end) for end in strangers] == [b"", b"", None, None, None])
    caller = ends.connect()  # the guest connects with a ticket
    ends.forward(b"a call", caller, ends.accept())
    assert [read(end) for end in strangers] == [b"", b"", b"", None, None]


@pytest.mark.parametrize("port", ["of the relay", "of callers"])
def test_without_descriptors_the_relay_pauses_accepting(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, port: str
) -> None:
    def fail(listener: socket.socket) -> None:
        failed.append(listener)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    failed: list[socket.socket] = []
    address = ends.relay.address if port == "of the relay" else ends.home.endpoints
    begun = time.monotonic()
    with monkeypatch.context() as without:
        without.setattr(socket.socket, "accept", fail)
        end = socket.create_connection(parse_address(address))
        ends.open.append(end)
        ends.turn_until(lambda: len(failed) == 3)
        assert time.monotonic() - begun >= 2 * ACCEPT_AGAIN_S
    end.setblocking(False)
    if port == "of callers":
        ends.forward(b"a call", end, ends.accept())
    else:
        end.sendall(b"x" * TICKET_BYTES)
        ends.turn_until(lambda: read(end) == b"")


def test_accepting_never_blocks_the_loop(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[socket.socket] = []

    def listen(listening: Listening) -> tuple[socket.socket, str]:
        port, endpoints = listen_for_bytes(listening)
        ports.append(port)
        return port, endpoints

    monkeypatch.setattr(relay_module, "listen_for_bytes", listen)
    ends.home.close()
    ends.relay.close()
    ends.relay = RelayServer(ends.loop, Listening(host="127.0.0.1"), print)
    ends.home = ends.connect_guest("")
    assert [port.getblocking() for port in ports] == [False, False]


def test_callers_waiting_for_a_guest_are_limited(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "HANDSHAKE_S", 60.0)
    ends.running.remove(ends.guests_loop)  # the guest is stopped
    callers = [ends.connect() for _ in range(MOST_STRANGERS + 10)]
    ends.turn_until(lambda: sum(read(caller) == b"" for caller in callers) == 10)
    ends.running.append(ends.guests_loop)
    ends.turn_until(lambda: len(ends.home))
    assert [read(caller) for caller in callers[9:11]] == [b"", None], "the oldest are closed"


@pytest.mark.parametrize("closes", ["the object", "the caller"])
def test_a_splice_is_closed_some_time_after_one_direction_ended(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, closes: str
) -> None:
    monkeypatch.setattr(relay_module, "DRAIN_S", 0.05)
    caller = ends.connect()
    served = ends.accept()
    closing, other = (served, caller) if closes == "the object" else (caller, served)
    closing.shutdown(socket.SHUT_WR)
    ends.turn_until(lambda: read(other) == b"")
    ends.turn_until(lambda: is_cut_off(other))
    ends.turn_until(lambda: not len(ends.home))


def test_callers_that_the_object_has_not_admitted_are_limited(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is closed if there are more, so idle strangers keep nobody out."""
    monkeypatch.setattr(relay_module, "MOST_STRANGERS", 2)
    known, to_known = ends.connect(), ends.accept()
    ends.forward(bytes(BEFORE_KEY_BYTES), to_known, known)
    ends.forward(b"x", to_known, known)  # the object has admitted it
    idle, to_idle = ends.connect(), ends.accept()
    ends.forward(bytes(BEFORE_KEY_BYTES), to_idle, idle)
    other, to_other = ends.connect(), ends.accept()
    late, to_late = ends.connect(), ends.accept()
    ends.turn_until(lambda: read(idle) == b"" and is_cut_off(to_idle))
    for caller, served in ((known, to_known), (other, to_other), (late, to_late)):
        ends.forward(b"a call", caller, served)


def test_a_caller_that_a_guest_does_not_fetch_in_time_is_closed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "HANDSHAKE_S", 0.05)
    ends.running.remove(ends.guests_loop)
    caller = ends.connect()
    ends.turn_until(lambda: read(caller) == b"")


def test_an_unreachable_relay_raises_worker_lost(ends: Ends) -> None:
    with pytest.raises(WorkerLost, match="no worker relays at tcp://127"):
        Home(ends.guests_loop, f"tcp://127.0.0.1:{free_port()}", b"", "", print)
