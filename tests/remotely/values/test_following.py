"""Versions that pass from one follower to the next, over TLS, within this process.

A `Machine` is what a store has of following.  A `Liar` is a follower in the chain that does as a
test says.
"""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from remotely.protocol.control import BulkAddress
from remotely.protocol.listening import Listening
from remotely.transport import bulk, certificate
from remotely.transport.bulk import BulkRequest, ByteServer, Connection
from remotely.values import following
from remotely.values.following import (
    FINAL,
    NEWER,
    NOT_YET,
    VIA,
    Followings,
    Origin,
    Publishing,
    VersionReply,
    Wish,
)
from remotely.values.published import Published
from remotely.values.versions import MappedVersions
from tests.clusters import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory is Linux's")

SIZE = 3 << 20
_encode = msgspec.msgpack.Encoder().encode


def value(number: int, size: int = SIZE) -> Any:
    return np.full(size, number, np.uint8)


def number_in(params: "Published[Any]") -> int:
    """Return the number in every byte of the newest version, which is also its version."""
    array, version = params.latest()
    assert (array == version).all()
    return version


class Server:
    """A server for bytes at an address of this machine."""

    def __init__(
        self,
        knows: Callable[[bytes], bool],
        answer: Callable[[Connection, BulkRequest], None],
    ) -> None:
        own = certificate.make()
        listener = socket.create_server(("127.0.0.1", 0))
        tcp = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        self.address = BulkAddress(tcp, own.fingerprint)
        self._server = ByteServer(listener, own, knows, answer)
        self._server.start()
        self.close = self._server.close


class Machine:
    """A machine that follows, and passes versions on unless it `is_script`."""

    def __init__(self, is_script: bool = False) -> None:
        self._followings = followings = Followings()
        self._server = Server(followings.__contains__, followings.pass_on)
        self.address = self._server.address
        followings.relay = None if is_script else self.address
        self.close = self._server.close

    def follow(self, origin: Origin) -> "Published[Any]":
        memory = self._followings.follow(_encode(origin))
        params: Published[Any] = Published.__new__(Published)
        held = MappedVersions(memory, writes=False)
        params._hold(memory, held, secrets.token_hex(16), None)
        return params


class Liar:
    """A follower that has its place in the chain, and then does as `answer` says."""

    def __init__(self, answer: Callable[[Connection, BulkRequest], None]) -> None:
        self.requests: list[BulkRequest] = []

        def noted(connection: Connection, request: BulkRequest) -> None:
            self.requests.append(request)
            answer(connection, request)

        self._server = Server(lambda name: True, noted)
        self.address = self._server.address
        self.close = self._server.close

    def join(self, origin: Origin) -> bytes:
        """Take a version from the writer, as the first of its chain; return it."""
        with bulk.connect(origin.bulk) as connection:
            reply = ask(connection, origin, 0, Wish(self.address))
            return connection.receive(reply.nbytes)


def ask(
    connection: Connection, origin: Origin, seen: int, wish: Wish | None = None
) -> VersionReply:
    """Ask the writer, or without a wish another follower, for a version."""
    connection.request(bulk.FOLLOW, origin.name, seen, 0, _encode(wish) if wish else b"")
    return VersionReply.received(connection)


class Place:
    """A process that publishes, and machines; all end with the test."""

    def __init__(self) -> None:
        self.publishing = Publishing()
        self.publishing.find_listening = lambda: Listening(host="127.0.0.1")
        self.ends: list[Callable[[], None]] = [self.publishing.stop]

    def origin(self, params: "Published[Any]") -> Origin:
        written = self.publishing.origin_of(params._memory, True)
        assert written is not None
        return msgspec.msgpack.decode(written, type=Origin)

    def machine(self, is_script: bool = False) -> Machine:
        made = Machine(is_script)
        self.ends.append(made.close)
        return made

    def liar(self, answer: Callable[[Connection, BulkRequest], None]) -> Liar:
        made = Liar(answer)
        self.ends.append(made.close)
        return made

    def server(self, answer: Callable[[Connection, BulkRequest], None]) -> Server:
        made = Server(lambda name: True, answer)
        self.ends.append(made.close)
        return made


def threads_of_ours() -> set[str]:
    names = {thread.name for thread in threading.enumerate()}
    return names & {"remotely-follow", "remotely-bulk"}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(following, "RELAY_PATIENCE_S", 30.0)
    monkeypatch.setattr(following, "RELAY_PATIENCE_MOST_S", 60.0)
    monkeypatch.setattr(following, "RECONNECT_EVERY_S", 0.02)
    before = len(os.listdir("/proc/self/fd"))
    made = Place()
    yield made
    for end in made.ends:
        end()
    wait_until(lambda: not threads_of_ours(), "the end of all threads")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, "all descriptors are closed")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The version and the number of bytes of each that the writer has sent itself."""
    sent: list[tuple[int, int]] = []
    send = VersionReply.send

    def noted(self: VersionReply, connection: Connection, *parts: Any) -> None:
        if self.kind == NEWER and parts:  # who passes a version on has no parts yet
            sent.append((self.number, sum(len(part) for part in parts)))
        send(self, connection, *parts)

    monkeypatch.setattr(VersionReply, "send", noted)
    return sent


def test_a_version_crosses_the_line_of_the_writer_once(
    place: Place, sent: list[tuple[int, int]]
) -> None:
    params = Published(value(1), eager=True)
    origin = place.origin(params)
    readers = [place.machine().follow(origin) for _ in range(4)]
    assert [number_in(reader) for reader in readers] == [1] * 4
    for number in (2, 3, 4):
        params.set(value(number))
        for reader in readers:
            assert reader.wait(newer_than=number - 1, timeout=60)
            assert number_in(reader) == number
    assert [number for number, _ in sent] == [1, 2, 3, 4]
    del params


def after_release(params: "Published[Any]") -> int:
    params.release()
    return params.latest().version


@pytest.mark.parametrize(
    "look",
    [
        lambda params: params.latest().version,
        lambda params: params.latest(copy=True).version,
        lambda params: params.latest(into=value(0, 9)).version,
        after_release,
        lambda params: params.version,
    ],
    ids=["latest", "copy", "into", "after release", "version"],
)
def test_every_way_to_look_at_a_version_asks_for_the_next(
    place: Place, monkeypatch: pytest.MonkeyPatch, look: Callable[["Published[Any]"], int]
) -> None:
    params = Published(value(1, 9))
    reader = place.machine().follow(msgspec.structs.replace(place.origin(params), eager=False))
    for number in (1, 2, 3):
        wait_until(lambda n=number: look(reader) == n, f"version {number} crosses")  # type: ignore[misc]
        params.set(value(number + 1, 9))
    monkeypatch.setattr(following, "UNUSED_S", 0.0)  # nobody asks for the last one


def test_a_small_version_comes_from_the_writer(place: Place, sent: list[tuple[int, int]]) -> None:
    params = Published(value(1, 1000))
    origin = place.origin(params)
    assert [number_in(place.machine().follow(origin)) for _ in range(2)] == [1, 1]
    assert len(sent) == 2


def test_a_script_takes_from_a_store_and_passes_nothing_on(
    place: Place, sent: list[tuple[int, int]]
) -> None:
    params = Published(value(1))
    origin = place.origin(params)
    for is_script, count in ((True, 1), (False, 2), (True, 2), (False, 2)):
        assert number_in(place.machine(is_script).follow(origin)) == 1
        assert len(sent) == count


def half_sent(go_on: threading.Event, whole: bytes) -> Callable[[Connection, BulkRequest], None]:
    """Answer with one version, of which the second half waits for an event."""

    def answer(connection: Connection, request: BulkRequest) -> None:
        if request.start >= 1:
            VersionReply(NOT_YET).send(connection)
            return
        half = len(whole) // 2
        VersionReply(NEWER, 1, 1, len(whole)).send(connection)
        connection.send(whole[:half])
        go_on.wait(60)
        connection.send(whole[half:])

    return answer


def region_of(place: Place, params: "Published[Any]") -> bytes:
    """Return the bytes of the newest version, as they travel."""
    origin = place.origin(params)
    with bulk.connect(origin.bulk) as connection:
        return connection.receive(ask(connection, origin, 0, Wish()).nbytes)


def follow_on_a_thread(machine: Machine, origin: Origin) -> "list[Published[Any]]":
    """Return a list that will have the one that follows."""
    found: list[Published[Any]] = []

    def follow() -> None:
        with contextlib.suppress(Exception):
            found.append(machine.follow(origin))

    threading.Thread(target=follow, daemon=True).start()
    return found


def asked_of_machine(machine: Machine, origin: Origin) -> tuple[Connection, VersionReply]:
    """Ask a machine for a version as soon as it follows."""
    while True:
        connection = bulk.connect(machine.address)
        try:
            return connection, ask(connection, origin, 0)
        except OSError:
            connection.close()
            time.sleep(0.01)


def test_a_version_is_passed_on_as_it_arrives(place: Place) -> None:
    whole, go_on = region_of(place, Published(value(1))), threading.Event()
    writer = place.server(half_sent(go_on, whole))
    machine, origin = place.machine(), Origin(secrets.token_hex(16), writer.address, eager=True)
    found = follow_on_a_thread(machine, origin)
    connection, reply = asked_of_machine(machine, origin)
    with connection:
        almost_half = len(whole) // 2 - bulk.CHUNK_BYTES
        first = connection.receive(almost_half)
        assert not found
        go_on.set()
        assert first + connection.receive(len(whole) - almost_half) == whole
        assert reply == (NEWER, 1, 1, len(whole))
    wait_until(lambda: found and number_in(found[0]) == 1, "it is whole here too")


def test_what_does_not_arrive_is_cut_for_those_it_was_passed_on_to(place: Place) -> None:
    whole = region_of(place, Published(value(1)))
    is_asked = threading.Event()

    def answer(connection: Connection, request: BulkRequest) -> None:
        VersionReply(NEWER, 1, 1, len(whole)).send(connection)
        connection.send(whole[: len(whole) // 2])
        is_asked.wait(60)
        connection.cut()

    writer = place.server(answer)
    machine, origin = place.machine(), Origin(secrets.token_hex(16), writer.address, eager=True)
    follow_on_a_thread(machine, origin)
    connection, _ = asked_of_machine(machine, origin)
    with connection:
        is_asked.set()
        with pytest.raises(OSError):
            connection.receive(len(whole))


def sends_half(connection: Connection, whole: bytes) -> None:
    VersionReply(NEWER, 1, 1, len(whole)).send(connection)
    connection.send(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    "how", ["refuses", "has none", "has ended", "is behind", "breaks", "stalls", "crawls"]
)
def test_a_follower_that_fails_is_replaced_by_the_writer(
    place: Place, sent: list[tuple[int, int]], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how in ("stalls", "crawls"):
        monkeypatch.setattr(following, "RELAY_PATIENCE_S", 0.2)
    params, over = Published(value(1), eager=True), threading.Event()
    whole = region_of(place, params)

    def answer(connection: Connection, request: BulkRequest) -> None:
        if how == "has none":
            VersionReply(NOT_YET).send(connection)
        elif how == "has ended":
            VersionReply(FINAL).send(connection)
        elif how == "is behind":
            VersionReply(NEWER, 0, 1, len(whole)).send(connection, whole)
        elif how == "breaks":
            sends_half(connection, whole)
            connection.cut()
        elif how == "stalls":
            sends_half(connection, whole)
            over.wait(60)
        elif how == "crawls":
            sends_half(connection, whole)
            at = len(whole) // 2
            while not over.wait(0.05):
                connection.send(whole[at : at + 1])
                at += 1

    liar, origin = place.liar(answer), place.origin(params)
    assert liar.join(origin) == whole
    if how == "refuses":
        liar.close()
    sent.clear()
    reader = place.machine().follow(origin)
    assert number_in(reader) == 1
    (_, nbytes) = sent.pop()
    if how in ("breaks", "stalls", "crawls"):  # only the rest
        assert nbytes <= len(whole) // 2 + bulk.CHUNK_BYTES
    asked = len(liar.requests)
    # It is not asked again for a while, unless it has just been cut off.
    with bulk.connect(origin.bulk) as connection:
        connection.request(bulk.FOLLOW, origin.name, 1, 0, _encode(Wish(liar.address)))
        params.set(value(2))
        assert VersionReply.received(connection).kind in (NEWER, VIA)
    assert reader.wait(newer_than=1, timeout=60)
    assert number_in(reader) == 2
    assert how == "breaks" or len(liar.requests) == asked
    over.set()


def test_the_break_of_one_link_is_not_noticed_further_down(
    place: Place, sent: list[tuple[int, int]]
) -> None:
    params = Published(value(1), eager=True)
    whole = region_of(place, params)
    is_asked = threading.Event()

    def answer(connection: Connection, request: BulkRequest) -> None:
        sends_half(connection, whole)
        is_asked.wait(60)
        connection.cut()

    liar, origin = place.liar(answer), place.origin(params)
    liar.join(origin)
    sent.clear()
    machine = place.machine()
    found = follow_on_a_thread(machine, origin)
    connection, reply = asked_of_machine(machine, origin)
    with connection:
        is_asked.set()
        assert connection.receive(reply.nbytes) == whole
    wait_until(lambda: found and number_in(found[0]) == 1, "it is whole here too")
    assert len(sent) == 1


def test_a_newer_version_takes_the_place_of_one_that_broke(place: Place) -> None:
    params, go_on = Published(value(1), eager=True), threading.Event()
    whole = region_of(place, params)

    def answer(connection: Connection, request: BulkRequest) -> None:
        sends_half(connection, whole)
        go_on.wait(60)
        connection.cut()

    liar, origin = place.liar(answer), place.origin(params)
    liar.join(origin)
    found = follow_on_a_thread(place.machine(), origin)
    wait_until(lambda: liar.requests, "it is asked")
    params.set(value(2))
    go_on.set()
    wait_until(lambda: found, "it has a version")
    assert number_in(found[0]) == 2


def test_who_takes_a_version_slowly_gets_all_of_it_and_holds_up_nobody(place: Place) -> None:
    params = Published(value(1), eager=True)
    whole, origin = region_of(place, params), place.origin(params)
    machine = place.machine()
    reader = machine.follow(origin)
    with bulk.connect(machine.address) as connection:
        reply = ask(connection, origin, 0)
        for number in range(2, 7):
            params.set(value(number))
            assert reader.wait(newer_than=number - 1, timeout=60)
            reader.release()
        assert connection.receive(reply.nbytes) == whole
        assert ask(connection, origin, 5).number == 6


def test_a_writer_that_ends_leaves_the_last_whole_version(place: Place) -> None:
    whole = region_of(place, Published(value(1)))
    is_asked = threading.Event()

    def answer(connection: Connection, request: BulkRequest) -> None:
        if request.start == 0:
            VersionReply(NEWER, 1, 1, len(whole)).send(connection, whole)
            return
        VersionReply(NEWER, 2, 1, len(whole)).send(connection)
        connection.send(whole[: len(whole) // 2])
        is_asked.set()

    writer = place.server(answer)
    machine = place.machine()
    reader = machine.follow(Origin(secrets.token_hex(16), writer.address, eager=True))
    is_asked.wait(60)
    writer.close()
    wait_until(lambda: reader.latest().is_final, "it is final")
    assert number_in(reader) == 1


def test_nobody_gets_a_version_without_its_name(place: Place) -> None:
    params = Published(value(1))
    origin, machine = place.origin(params), place.machine()
    machine.follow(origin)
    with bulk.connect(machine.address) as connection, pytest.raises(OSError):
        ask(connection, Origin(secrets.token_hex(16), origin.bulk), 0)


def test_a_value_that_is_gone_is_final_at_once(place: Place) -> None:
    params = Published(value(1))
    reader = place.machine().follow(place.origin(params))
    begun = time.monotonic()
    del params
    wait_until(lambda: reader.latest().is_final, "it is final")
    assert time.monotonic() - begun < following.LOST_S / 2
    assert number_in(reader) == 1
