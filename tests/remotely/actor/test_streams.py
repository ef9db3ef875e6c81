"""The generators that an actor keeps: each is closed with its consumer, even after a kill."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import remotely
from remotely.actor import servant
from remotely.actor.servant import CONSUMER_SILENT_S, Streams
from tests.clusters import Started, wait_until


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(servant, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def numbers(closed: list[str]) -> Iterator[int]:
    try:
        yield from range(100)
    finally:
        closed.append("closed")


async def async_numbers(closed: list[str]) -> AsyncIterator[int]:
    try:
        for number in range(100):
            yield number
    finally:
        closed.append("closed")


def test_a_silent_consumer_is_checked_at_growing_intervals(clock: Clock) -> None:
    streams = Streams(lambda count: None)
    streams.keep(b"here", "numbers", numbers([]))
    checked = []
    for _ in range(3600):
        clock.now += 1
        if streams.silent(clock.now):
            checked.append(clock.now - 100)
    assert checked[0] == CONSUMER_SILENT_S
    assert len(checked) < 15
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(checked))


def test_an_active_consumer_is_not_checked(clock: Clock) -> None:
    streams = Streams(lambda count: None)
    name = streams.keep(b"here", "numbers", numbers([])).name
    for _ in range(50):
        clock.now += CONSUMER_SILENT_S / 2
        streams.next(b"here", name)
        assert not streams.silent(clock.now)


def test_finished_and_closed_generators_are_forgotten() -> None:
    closed: list[str] = []
    streams = Streams(lambda count: None)
    done, begun, unused = (streams.keep(b"", "numbers", numbers(closed)).name for _ in range(3))
    for _ in range(100):
        streams.next(b"", done)
    with pytest.raises(StopIteration):
        streams.next(b"", done)
    streams.next(b"", begun)
    streams.close(begun)
    streams.close(unused)
    streams.close("unknown")
    assert closed == ["closed"] * 2  # the third was never begun
    assert not streams.names_of(b"")
    with pytest.raises(StopIteration):
        streams.next(b"", unused)


def test_finished_and_closed_async_generators_are_forgotten() -> None:
    closed: list[str] = []
    streams = Streams(lambda count: None)

    async def use() -> None:
        first, second = (streams.keep(b"", "numbers", async_numbers(closed)).name for _ in range(2))
        assert streams.is_async(first)
        for expected in range(100):
            assert await streams.next_async(b"", first) == expected
        with pytest.raises(StopAsyncIteration):
            await streams.next_async(b"", first)
        assert await streams.next_async(b"", second) == 0
        await streams.close_async(second)

    asyncio.run(use())
    assert closed == ["closed"] * 2
    assert not streams.names_of(b"")


@remotely.remote_class
class Source:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def count(self) -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            (Path(self.folder) / "closed").touch()


@remotely.remote_class
class AsyncSource:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    async def count(self) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            (Path(self.folder) / "closed").touch()


CONSUMER = """
import sys, remotely
items = remotely.get_actor("source").count()
print(next(items), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("cls", [Source, AsyncSource])
def test_the_generator_of_a_client_that_was_killed_is_closed(
    nothing_left: None, started: Started, tmp_path: Path, cls: type
) -> None:
    remotely.connect(started.address, key=started.key)
    source = remotely.options(cls, name="source")(str(tmp_path))
    consumer = subprocess.Popen(
        [sys.executable, "-c", CONSUMER],
        env={
            **os.environ,
            "REMOTELY_ADDRESS": started.address,
            "REMOTELY_KEY": str(started.key),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"1\n"
        assert not (tmp_path / "closed").exists()
        consumer.send_signal(signal.SIGKILL)
    wait_until((tmp_path / "closed").exists, "the generator is closed")
    mine = source.count()
    assert next(mine) == 1
