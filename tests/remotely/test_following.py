"""A Published on other machines: each version crosses once a machine, and never waits in a queue.

The machines are the two workers of `joined`, and that of the script.
"""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import remotely
from remotely import NotShared, Published, PublisherGone
from remotely.transport.bulk import ByteServer, Connection
from remotely.values.following import NEWER, publishing
from tests.clusters import Started, freeze, processes, wait_until

SIZE = 100_000
LARGE = 1_000_000  # such versions pass from machine to machine


def value(number: int, size: int = SIZE) -> Any:
    return np.full(size, float(number))


@remotely.remote_class
class Reader:
    def __init__(self, params: Any = None) -> None:
        self.params = params

    def keep(self, params: Any) -> None:
        self.params = params

    def give(self) -> Any:
        return self.params

    def pass_to(self, other: Any) -> None:
        other.keep(self.params)

    def read(self) -> tuple[float, int, bool]:
        latest = self.params.latest()
        assert (latest.value == latest.value[0]).all()
        return float(latest.value[0]), latest.version, latest.is_final

    def read_at_least(self, version: int) -> tuple[float, int, bool]:
        while self.params.version < version:
            self.params.wait(newer_than=self.params.version, timeout=30)
        return self.read()

    def wait(self, version: int) -> bool:
        newer: bool = self.params.wait(newer_than=version, timeout=30)
        return newer

    def version(self) -> int:
        """Return the version that is here, without asking for another."""
        number: int = self.params._versions._header.latest[0]
        return number

    def make(self) -> Any:
        self.params = Published(value(1))
        return self.params

    def set(self, number: int) -> None:
        self.params.set(value(number))

    def host(self) -> str:
        return os.environ["REMOTELY_HOST"]

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def joined(started: Started, nothing_left: None) -> Iterator[Started]:
    remotely.connect(started.address, key=started.key)
    yield started
    remotely.shutdown()


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each version that this process has sent to another machine."""
    sent: list[int] = []
    answer = Connection.send

    def counted(self: Connection, *parts: Any) -> None:
        if len(parts) == 2 and len(parts[0]) == 25 and parts[0][0] == NEWER:
            sent.append(memoryview(parts[1]).nbytes)
        answer(self, *parts)

    monkeypatch.setattr(Connection, "send", counted)
    return sent


def test_actors_of_other_machines_read_what_the_script_publishes(
    joined: Started, followed: list[int]
) -> None:
    params = Published(value(1))
    readers = remotely.group(Reader, 4, params)
    assert len(set(readers.host())) == 2
    assert readers.read() == [(1, 1, False)] * 4
    assert len(followed) == 2  # once a machine
    params.set(value(2))
    assert readers.read_at_least(2) == [(2, 2, False)] * 4
    assert len(followed) == 4
    assert all(SIZE * 8 <= nbytes < SIZE * 8 + 4096 for nbytes in followed)


def test_a_large_version_crosses_the_line_of_the_writer_once(
    joined: Started, followed: list[int]
) -> None:
    params = Published(value(1, LARGE), eager=True)
    readers = remotely.group(Reader, 4, params)
    assert len(set(readers.host())) == 2
    assert readers.read() == [(1, 1, False)] * 4
    for number in (2, 3):
        params.set(value(number, LARGE))
        assert readers.read_at_least(number) == [(number, number, False)] * 4
    assert len(followed) == 3


@pytest.mark.parametrize("number", [0, 1])
def test_a_machine_that_is_stopped_holds_up_no_other(joined: Started, number: int) -> None:
    params = Published(value(1, LARGE), eager=True)
    group = remotely.group(Reader, 4, params)
    stopped = joined.homes[number]
    by_host = dict(zip(group.host(), group, strict=True))
    there, other = by_host.pop(stopped.name), *by_host.values()
    assert there.read() == other.read() == (1, 1, False)
    (store,) = processes(str(stopped), "remotely.store")
    freeze(store.pid)
    try:
        for version in (2, 3):
            params.set(value(version, LARGE))
            assert other.read_at_least(version) == (version, version, False)
    finally:
        store.resume()
    assert there.read_at_least(3) == (3, 3, False)


@pytest.mark.parametrize("number", [0, 1])
def test_a_machine_whose_store_is_killed_holds_up_no_other(joined: Started, number: int) -> None:
    params = Published(value(1, LARGE), eager=True)
    group = remotely.group(Reader, 4, params)
    killed = joined.homes[number]
    by_host = dict(zip(group.host(), group, strict=True))
    there, other = by_host.pop(killed.name), *by_host.values()
    assert there.read() == other.read() == (1, 1, False)
    (store,) = processes(str(killed), "remotely.store")
    store.kill()
    for version in (2, 3):
        params.set(value(version, LARGE))
        assert other.read_at_least(version) == (version, version, False)
    assert there.read() == (1, 1, True)


def test_versions_that_nobody_wants_do_not_cross(joined: Started, followed: list[int]) -> None:
    params = Published(value(1))
    reader = Reader(params)
    reader.read()
    params.set(value(2))
    assert reader.read_at_least(2) == (2, 2, False)
    for number in range(3, 40):
        params.set(value(number))
    first = reader.version()
    assert len(followed) <= 3
    assert reader.read_at_least(39) == (39, 39, False)
    assert len(followed) <= 5
    assert first <= 39


def test_an_eager_one_crosses_before_it_is_wanted(joined: Started) -> None:
    params = Published(value(1), eager=True)
    reader = Reader(params)
    for number in (2, 3):
        params.set(value(number))
        wait_until(lambda n=number: reader.version() == n, "it is there")  # type: ignore[misc]


def test_it_is_passed_on_from_machine_to_machine_and_back(joined: Started) -> None:
    params = Published(value(1))
    group = remotely.group(Reader, 4)
    by_host = dict(zip(group.host(), group, strict=True))
    one, two = by_host.values()
    one.keep(params)
    one.pass_to(two)
    params.set(value(2))
    assert two.read_at_least(2) == (2, 2, False)
    assert two.give() is params


def test_the_script_and_other_machines_read_what_an_actor_publishes(joined: Started) -> None:
    group = remotely.group(Reader, 4)
    by_host = dict(zip(group.host(), group, strict=True))
    maker, other = by_host.values()
    params = maker.make()
    other.keep(params)
    maker.set(2)
    assert other.read_at_least(2) == (2, 2, False)
    while params.version < 2:
        params.wait(newer_than=params.version, timeout=30)
    assert params.latest().value[0] == 2
    waiting = remotely.submit(other.wait, 2)
    os.kill(maker.pid(), signal.SIGKILL)
    del maker, by_host, group
    with pytest.raises(PublisherGone):
        waiting.result()
    assert other.read() == (2, 2, True)
    wait_until(lambda: params.latest().is_final, "it is final here too")


def test_readers_elsewhere_learn_that_the_writer_has_let_go(joined: Started) -> None:
    params = Published(value(1))
    reader = Reader(params)
    assert reader.read() == (1, 1, False)
    del params
    gc.collect()
    wait_until(lambda: reader.read() == (1, 1, True), "it is final")


def test_one_that_cannot_be_reached_says_why(
    joined: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = Published(value(1))
    reader = Reader()
    origin = publishing.origin_of(params._memory, False)
    assert origin is not None
    publishing._server.close()  # type: ignore[union-attr]
    with pytest.raises(NotShared, match=r"cannot be followed here: .* cannot be reached"):
        reader.keep(params)


def test_a_connection_that_breaks_is_made_again(joined: Started) -> None:
    params = Published(value(1))
    reader = Reader(params)
    reader.read()
    server = publishing._server
    assert isinstance(server, ByteServer)
    for connection in list(server._known):
        connection.cut()
    params.set(value(2))
    assert reader.read_at_least(2) == (2, 2, False)
