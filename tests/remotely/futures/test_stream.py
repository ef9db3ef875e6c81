"""Streams: iterating a generator method of an actor, with a few items ahead."""

import asyncio
import os
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.futures.future import CallFuture, completed
from remotely.futures.stream import AHEAD, Stream, local_stream
from tests.clusters import wait_until
from tests.forks import raised_in_a_fork


@remotely.remote_class
class Source:
    def __init__(self, folder: str = "") -> None:
        self.folder = folder
        self.made = 0
        self.scale = 1

    def count(self, to: int) -> Iterator[int]:
        try:
            for number in range(to):
                self.made += 1
                yield number * self.scale
        finally:
            if self.folder:
                (Path(self.folder) / "closed").touch()

    def arrays(self, number: int) -> Iterator[Any]:
        array = np.zeros(50_000)
        for _ in range(number):
            array += 1
            yield array

    def breaks(self) -> Iterator[int]:
        yield 1
        raise ValueError("in the middle")

    def slowly(self, seconds: float) -> Iterator[float]:
        while True:
            time.sleep(seconds)
            yield seconds

    def pid(self) -> int:
        return os.getpid()


@remotely.remote_class
class AsyncSource:
    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            await asyncio.sleep(0.001)
            yield number


@remotely.remote_class(concurrency=2)
class SharedSource:
    def __init__(self) -> None:
        self.go = threading.Event()

    def held(self) -> Iterator[int]:
        yield 1
        self.go.wait()
        yield 2

    def count(self, to: int) -> Iterator[int]:
        yield from range(to)

    @property
    def held_value(self) -> bool:
        return self.go.wait()

    @property
    def setting_releases(self) -> bool:
        return self.go.is_set()

    @setting_releases.setter
    def setting_releases(self, value: bool) -> None:
        self.go.set()

    def release(self) -> None:
        self.go.set()

    def interrupt(self) -> None:
        raise KeyboardInterrupt


async def items_of(stream: Any) -> list[Any]:
    return [item async for item in stream]


def test_a_generator_method_is_iterated_by_its_caller_who_needs_no_handle(cluster: str) -> None:
    assert list(Source().count(50)) == list(range(50))
    assert list(Source().count(0)) == []


def test_an_item_has_its_value_at_the_yield(cluster: str) -> None:
    assert [float(array[0]) for array in Source().arrays(6)] == [1, 2, 3, 4, 5, 6]


def test_nothing_runs_before_the_first_item_is_requested(here: None) -> None:
    source = Source()

    stream = source.count(10)

    assert source.made == 0
    assert next(stream) == 0
    stream.close()


def test_the_actor_works_at_most_a_few_items_ahead(here: None) -> None:
    source = Source()

    stream = source.count(1000)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]

    assert source.made <= 3 + AHEAD
    assert list(stream) == list(range(3, 1000))


def test_other_calls_are_served_between_two_items(here: None) -> None:
    source = Source()

    stream = source.count(100)
    assert next(stream) == 0
    source.scale = 1000

    assert list(stream)[-1] == 99_000


def test_with_concurrency_calls_are_served_while_an_item_is_made(here: None) -> None:
    source = SharedSource()
    stream = source.held()
    assert next(stream) == 1

    remotely.submit(source.release).result(timeout=40)  # the next items are requested already

    assert list(stream) == [2]


def test_with_concurrency_attributes_are_served_at_the_same_time(here: None) -> None:
    source = SharedSource()
    with ThreadPoolExecutor(1) as other:
        held = other.submit(getattr, source, "held_value")
        try:
            assert source.setting_releases is False
        finally:
            source.setting_releases = True

    assert held.result(timeout=40)


def test_with_concurrency_the_items_of_a_stream_are_made_one_at_a_time_and_in_order(
    here: None,
) -> None:
    source = SharedSource()

    both = list(zip(source.count(200), source.count(200), strict=True))

    assert both == [(number, number) for number in range(200)]
    stream = source.count(200)
    assert next(stream) == 0
    remotely.close(source)  # items that were requested before still arrive
    assert [next(stream) for _ in range(AHEAD)] == [1, 2, 3, 4]


def test_with_concurrency_a_keyboard_interrupt_of_a_method_reaches_its_caller(here: None) -> None:
    source = SharedSource()
    with pytest.raises(KeyboardInterrupt):
        source.interrupt()
    assert list(source.count(2)) == [0, 1]


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_a_consumer_that_stops_closes_the_generator_in_the_actor(
    here: None, tmp_path: Path, how: str
) -> None:
    source = Source(str(tmp_path))

    stream = source.count(1000)
    for item in stream:
        if item == 2:
            break
    if how == "close":
        stream.close()
        assert list(stream) == []
    elif how == "with":
        with stream:
            pass
    else:
        del stream

    wait_until((tmp_path / "closed").exists, "the end of the generator")


def test_an_error_in_the_middle_arrives_after_the_items_before_it(cluster: str) -> None:
    stream = Source().breaks()

    assert next(stream) == 1
    with pytest.raises(ValueError, match="in the middle") as raised:
        next(stream)
    assert "in breaks" in str(raised.value.__cause__)
    assert list(stream) == []


def test_the_death_of_the_actor_raises_in_the_consumer(cluster: str) -> None:
    source = Source()
    pid = source.pid()
    stream = source.slowly(0.05)
    assert next(stream) == 0.05

    os.kill(pid, signal.SIGKILL)

    with pytest.raises(remotely.ActorDied):
        list(stream)


def test_async_generators_are_streams_too(cluster: str) -> None:
    source: Any = AsyncSource()

    first, second = source.count(20), source.count(20)

    assert list(zip(first, second, strict=True)) == [(n, n) for n in range(20)]


def test_threads_that_share_a_stream_get_each_item_once(here: None) -> None:
    stream = Source().count(500)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            lists = [threads.submit(list, stream) for _ in range(4)]
            items = [item for future in lists for item in future.result()]
    finally:
        sys.setswitchinterval(switch_s)

    assert sorted(items) == list(range(500))


def test_an_item_whose_wait_was_interrupted_is_the_next_one(here: None) -> None:
    source = SharedSource()
    stream = source.held()
    assert next(stream) == 1

    def read() -> int:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        return next(stream)

    with pytest.raises(KeyboardInterrupt):
        read()
    source.release()

    assert list(stream) == [2]


def test_a_stream_is_read_by_async_for(cluster: str) -> None:
    async def fail(stream: Any) -> None:
        assert await anext(stream) == 1
        with pytest.raises(ValueError, match="in the middle"):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    assert asyncio.run(items_of(Source().count(50))) == list(range(50))
    assert asyncio.run(items_of(AsyncSource().count(5))) == list(range(5))
    asyncio.run(fail(Source().breaks()))


def test_a_cancelled_wait_blocks_no_event_loop_and_loses_no_item(here: None) -> None:
    source = SharedSource()

    async def read() -> list[int]:
        stream: Any = source.held()
        assert await anext(stream) == 1
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
        source.release()
        return await items_of(stream)

    began = time.monotonic()
    assert asyncio.run(read()) == [2]
    assert time.monotonic() - began < 9.0, "cancelling each call would take half a second"


def test_a_cancelled_task_leaves_the_item_to_others_and_no_callback() -> None:
    asked: list[CallFuture[int]] = []

    def ask() -> CallFuture[int]:
        asked.append(CallFuture("a stream"))
        return asked[-1]

    async def share() -> None:
        stream: Stream[int] = Stream(ask, lambda: None)
        cancelled, other = (asyncio.create_task(anext(stream, -1)) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        asked[0].set_result(7)
        assert await other == 7
        last = asyncio.create_task(anext(stream, -1))
        await asyncio.sleep(0)
        last.cancel()
        with pytest.raises(asyncio.CancelledError):
            await last
        assert not asked[1].has_callbacks, "a cancelled wait must remove its callback"
        asked[1].set_result(8)
        asked[2].set_exception(StopIteration())
        assert await items_of(stream) == [8]

    asyncio.run(share())


def test_a_closed_stream_yields_no_item_that_was_given_back() -> None:
    async def close() -> list[int]:
        stream: Stream[int] = Stream(lambda: CallFuture("a stream"), lambda: None)
        waits = [asyncio.create_task(anext(stream)) for _ in range(2)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.wait(waits[:1])
        stream.close()
        waits[1].cancel()
        await asyncio.wait(waits)
        return await asyncio.wait_for(items_of(stream), 1.0)

    assert asyncio.run(close()) == []


def test_tasks_that_share_a_stream_get_each_item_once(here: None) -> None:
    async def share(stream: Any) -> list[int]:
        lists = await asyncio.gather(*(items_of(stream) for _ in range(3)))
        return sorted(item for items in lists for item in items)

    assert asyncio.run(share(Source().count(100))) == list(range(100))


def test_merge_yields_items_as_they_arrive(here: None) -> None:
    slow, fast = Source(), Source()

    seen = []
    for seconds in remotely.merge([slow.slowly(0.5), fast.slowly(0.01)]):
        seen.append(seconds)
        if len(seen) == 20:
            break

    assert seen.count(0.01) >= 18


def test_merge_keeps_no_item_that_it_has_yielded() -> None:
    for item in remotely.merge([map(set, ["ab", "c"])]):
        dropped = weakref.ref(item)
        del item
        assert dropped() is None


def test_merge_ends_with_the_last_of_its_streams(cluster: str) -> None:
    sources = remotely.group(Source, 3)

    items = list(remotely.merge(sources.count(10)))

    assert sorted(items) == sorted([*range(10)] * 3)


def test_merge_closes_its_streams_when_its_consumer_stops(here: None, tmp_path: Path) -> None:
    source = Source(str(tmp_path))

    merged = remotely.merge([source.count(1000)])
    assert next(merged) == 0
    merged.close()

    wait_until((tmp_path / "closed").exists, "the end of the generator")


def test_a_forked_child_reads_no_stream_of_its_parent() -> None:
    def one_item() -> Stream[int]:
        items = iter([completed(1)])
        return Stream(lambda: next(items, None) or CallFuture("an item"), lambda: None)

    stream, merged = one_item(), remotely.merge([one_item()])
    assert (next(stream), next(merged)) == (1, 1)
    reads = [lambda: next(stream), lambda: asyncio.run(items_of(stream)), lambda: next(merged)]
    for read in reads:
        assert re.match("NotConnected: a stream was pending .* forked", raised_in_a_fork(read))
    local = local_stream(iter([1]))
    assert raised_in_a_fork(lambda: next(local)) == ""


def test_streams_work_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    try:
        sources = remotely.group(Source, 2)
        assert list(sources[0].count(3)) == [0, 1, 2]
        assert asyncio.run(items_of(sources[0].count(3))) == [0, 1, 2]
        assert sorted(remotely.merge(sources.count(3))) == [0, 0, 1, 1, 2, 2]
    finally:
        remotely.shutdown()
