"""The TLS port of a store: pushes, pulls, relays, and strangers."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from remotely.protocol import control
from remotely.protocol.address import parse_address
from remotely.protocol.control import BulkAddress
from remotely.store import bulk_server
from remotely.store.bulk_server import KEPT_S, BulkServer, Fetching, LentRoom
from remotely.transport import bulk, certificate
from remotely.transport.bulk import ValueGone
from remotely.values.shelf import Shelf, Value
from tests.clusters import wait_until
from tests.remotely.values.test_shelf import Room, kept

OWN = certificate.make()
NAME, OTHER = b"n" * 32, b"o" * 32


class Machine:
    """A bulk server and its shelf, without the store process."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = BulkAddress(
            f"tcp://127.0.0.1:{self.listener.getsockname()[1]}", OWN.fingerprint
        )
        self.shelf: Shelf[LentRoom] = Shelf()
        self.arrived: list[bytes] = []
        self.broken: list[bytes] = []
        self.unrelayed: list[BulkAddress] = []
        BulkServer(self.listener, OWN, self.shelf, self._hear).start()

    def _hear(self, value: Value[LentRoom], message: msgspec.Struct) -> None:
        match message:
            case control.Stored(value=name):
                self.arrived.append(name)
            case control.Broken(value=name):
                self.broken.append(name)
            case control.Unrelayed(bulk=to):
                self.unrelayed.append(to)

    def expect(self, nbytes: int = 10) -> Room:
        room = Room(nbytes)
        self.shelf.add(NAME, room, "client", is_here=False)
        return room

    def close(self) -> None:
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    made = [Machine(), Machine(), Machine()]
    yield made
    for machine in made:
        machine.close()


def onward(*machines: Machine) -> bytes:
    return msgspec.msgpack.encode([machine.address for machine in machines])


def test_an_expected_value_arrives(machines: list[Machine]) -> None:
    machine, *_ = machines
    room = machine.expect()
    with bulk.connect(machine.address) as connection:
        connection.push(NAME, 0, 4, [memoryview(b"0123")], b"")
        assert machine.arrived == []
        connection.push(NAME, 4, 6, [memoryview(b"456789")], b"")
    assert machine.arrived == [NAME]
    assert bytes(room.memory) == b"0123456789"


def test_a_value_is_relayed_from_machine_to_machine(machines: list[Machine]) -> None:
    first, second, third = machines
    rooms = [machine.expect(1 << 20) for machine in machines]
    value = memoryview(bytes(range(256)) * (1 << 12))
    with bulk.connect(first.address) as connection:
        connection.push(NAME, 0, 1 << 20, [value], onward(second, third))
    wait_until(lambda: third.arrived == [NAME] and second.arrived == [NAME], "its arrival")
    assert [bytes(room.memory) for room in rooms] == [bytes(value)] * 3
    assert first.unrelayed == []


def test_an_unreachable_next_machine_is_reported(machines: list[Machine]) -> None:
    first, second, _ = machines
    first.expect()
    second.close()
    with bulk.connect(first.address) as connection:
        connection.push(NAME, 0, 10, [memoryview(b"0123456789")], onward(second))
    assert first.arrived == [NAME]
    wait_until(lambda: first.unrelayed == [second.address], "the report")


def test_a_failed_transfer_is_reported_on_each_machine_and_can_be_repeated(
    machines: list[Machine],
) -> None:
    first, second, _ = machines
    nbytes = 4 * bulk.CHUNK_BYTES
    rooms = [first.expect(nbytes), second.expect(nbytes)]
    with bulk.connect(first.address) as connection:
        connection.request(bulk.PUSH, NAME, 0, nbytes, onward(second))
        connection.send(bytes(2 * bulk.CHUNK_BYTES))
        wait_until(lambda: next(iter(second.shelf.stalled(1e18))).moved_at > 0, "its beginning")
    wait_until(lambda: first.broken == [NAME] and second.broken == [NAME], "the reports")

    for machine in (first, second):
        with bulk.connect(machine.address) as connection:
            connection.push(NAME, 0, nbytes, [memoryview(b"x" * nbytes)], b"")
    assert [bytes(room.memory[:1]) for room in rooms] == [b"x", b"x"]
    assert (first.arrived, second.arrived) == ([NAME], [NAME])


def test_a_value_can_be_pulled_until_it_is_dropped(machines: list[Machine]) -> None:
    machine, *_ = machines
    room = Room()
    room.memory[:] = b"0123456789"
    machine.shelf.add(NAME, room, "actor")
    is_kept = kept(room)
    del room
    memory = bytearray(4)
    with bulk.connect(machine.address) as connection:
        for _ in range(2):
            connection.pull(NAME, 3, memoryview(memory))
            assert bytes(memory) == b"3456"
        machine.shelf.drop(NAME)
        wait_until(lambda: not is_kept(), "the end of the last pull")
        with pytest.raises(ValueGone, match="released"):
            connection.pull(NAME, 3, memoryview(memory))


@pytest.mark.parametrize(
    ("op", "name"), [(bulk.PUSH, OTHER), (bulk.PULL, OTHER), (99, OTHER), (99, NAME)]
)
def test_a_request_for_an_unknown_value_or_operation_ends_the_connection(
    machines: list[Machine], op: int, name: bytes
) -> None:
    machine, *_ = machines
    machine.expect()
    with bulk.connect(machine.address) as connection:
        connection.request(op, name, 0, 10)
        with pytest.raises(OSError, match=r"ended|reset"):
            connection.receive(100)
    assert NAME in machine.shelf
    assert machine.arrived == []


def test_a_stranger_that_sends_its_request_too_slowly_is_cut_off(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STALL_S", 0.3)
    machine, *_ = machines
    sent = 0
    with bulk.connect(machine.address) as connection:
        connection._socket.settimeout(0.02)
        is_cut = False
        while not is_cut:
            connection.send(b"x")
            sent += 1
            try:
                connection.receive(1)
            except OSError as error:
                is_cut = not isinstance(error, TimeoutError)
    assert 1 < sent < bulk.REQUEST.size


def test_a_stranger_is_cut_off_before_the_onward_route_is_read(machines: list[Machine]) -> None:
    machine, *_ = machines
    with bulk.connect(machine.address) as connection:
        connection.send(bulk.REQUEST.pack(bulk.PUSH, OTHER, 0, 10, bulk.MAX_ONWARD_BYTES))
        with pytest.raises(OSError, match=r"ended|reset"):
            connection.receive(1)


def test_the_number_of_strangers_is_limited_and_they_do_not_block_clients(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MOST_STRANGERS", 4)
    machine, *_ = machines
    room = machine.expect()
    with bulk.connect(machine.address) as known, contextlib.ExitStack() as stack:
        known.push(NAME, 0, 1, [memoryview(b"0")], b"")
        before = bulk_threads()
        strangers = []
        for _ in range(40):
            stranger = socket.create_connection(parse_address(machine.address.tcp))
            strangers.append(stack.enter_context(stranger))
        with bulk.connect(machine.address) as late:
            late.push(NAME, 1, 4, [memoryview(b"1234")], b"")
            for stranger in strangers[:37]:  # the newest four stay: the last three, and `late`
                assert stranger.recv(1) == b""
            wait_until(lambda: bulk_threads() <= before + 5, "the end of the others' threads")
            known.push(NAME, 5, 5, [memoryview(b"56789")], b"")
    assert bytes(room.memory) == b"0123456789"


def bulk_threads() -> int:
    return sum(thread.name == "remotely-bulk" for thread in threading.enumerate())


def test_an_unexpected_error_ends_the_relay_too(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = machines
    nbytes = 4 * bulk.CHUNK_BYTES
    first.expect(nbytes)
    second.expect(nbytes)
    receive = bulk.Connection.receive_into

    def fails(connection: bulk.Connection, memory: memoryview) -> None:
        if memory.nbytes == bulk.CHUNK_BYTES and memory.obj is first_memory:
            raise ValueError("unexpected")
        receive(connection, memory)

    value = first.shelf.get(NAME, is_here=False)
    assert value is not None
    first_memory = value.room.memory.obj
    monkeypatch.setattr(bulk.Connection, "receive_into", fails)
    with bulk.connect(first.address) as connection:
        connection.request(bulk.PUSH, NAME, 0, nbytes, onward(second))
        wait_until(lambda: first.broken == [NAME] and second.broken == [NAME], "the reports")
    wait_until(lambda: "unexpected" in caplog.text, "its log")


@pytest.mark.parametrize(("start", "nbytes"), [(0, 11), (5, 6), (1 << 60, 1)])
def test_a_stripe_beyond_the_end_of_its_value_is_refused(
    machines: list[Machine], start: int, nbytes: int
) -> None:
    machine, *_ = machines
    machine.expect()
    with bulk.connect(machine.address) as connection, pytest.raises(OSError):
        connection.push(NAME, start, nbytes, [memoryview(bytes(nbytes))], b"")
    assert machine.arrived == []


# --- fetching -------------------------------------------------------------------------------------


def test_a_value_is_fetched_once_and_kept_for_a_while(
    machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = machines
    room, fetched = Room(), Room()
    room.memory[:] = b"0123456789"
    first.shelf.add(NAME, room, "actor")
    monkeypatch.setattr(bulk_server, "reserve", lambda nbytes: fetched)
    fetching = Fetching(second.shelf, second.address)

    for _ in range(2):
        assert fetching.fetch(NAME, 10, first.address) is None
        first.close()  # the second time it is here
    assert bytes(fetched.memory) == b"0123456789"

    second.shelf.tidy(time.monotonic())
    assert NAME in second.shelf
    second.shelf.tidy(time.monotonic() + 2 * KEPT_S)
    assert NAME not in second.shelf


def test_a_value_of_this_machine_is_not_fetched(machines: list[Machine]) -> None:
    machine, *_ = machines
    fetching = Fetching(machine.shelf, machine.address)
    machine.shelf.add(NAME, Room(), "actor")

    assert fetching.fetch(NAME, 10, machine.address) is None
    machine.shelf.tidy(time.monotonic() + 2 * KEPT_S)
    assert NAME in machine.shelf

    gone = fetching.fetch(OTHER, 10, machine.address)
    assert gone is not None
    assert "released" in gone.why
