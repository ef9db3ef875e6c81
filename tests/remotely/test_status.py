"""`remotely.status()`: the running method of each actor, its age, and the queued calls."""

import asyncio
import ctypes
import functools
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.master.queries import STATUS_WAIT_S, StatusQueries
from remotely.reporting.cluster_status import ActorStatus, MethodStatus
from remotely.transport import activity
from remotely.transport.activity import (
    METHODS,
    OTHERS,
    CallTimes,
    OneByOne,
    Seen,
    Several,
    look,
    measured,
    new,
)
from tests.clusters import wait_until


@remotely.remote_class(cpus=0.1)
class Waiter:
    def waits_for(self, seconds: float) -> None:
        time.sleep(seconds)

    def takes(self, array: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> None: ...

    def holds_the_interpreter(self, microseconds: int) -> None:
        ctypes.PyDLL(None).usleep(microseconds)  # a PyDLL keeps the lock, as C code of a user may


@remotely.remote_class(cpus=0.1)
class Asker:
    def asks(self, waiter: Waiter) -> None:
        waiter.waits_for(0.0)


@remotely.remote_class(cpus=0.1, concurrency=3)
class Threaded(Waiter):
    pass


@remotely.remote_class(cpus=0.1)
class Asynchronous:
    async def waits(self) -> None:
        await asyncio.sleep(60)

    def passes_on(self) -> Any:
        return asyncio.sleep(0.01)


@remotely.remote_class(cpus=0.1)
class Batched:
    @remotely.batched(max_size=4, wait_ms=1000)
    def waits(self, items: list[int]) -> list[int]:
        time.sleep(60)
        return items


class Unreadable:
    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


@remotely.remote_class(cpus=0.1)
class Failing:
    def raises(self, item: object) -> None:
        raise ValueError

    @remotely.batched(max_size=2, wait_ms=60_000)
    def raises_together(self, items: list[object]) -> list[object]:
        raise ValueError

    @remotely.batched(max_size=2, wait_ms=60_000)
    def returns_a_lock(self, items: list[object]) -> list[object]:
        return [threading.Lock(), 1]

    def fails_later(self) -> Iterator[int]:
        yield 1
        raise ValueError

    def counts(self) -> Iterator[int]:
        yield 1

    def __next__(self) -> int:
        raise StopIteration


@remotely.remote_class(cpus=0.1, concurrency=2)
class FailingOnThreads(Failing):
    pass


@remotely.remote_class(cpus=0.1)
class FailingTasks(Failing):
    async def raises(self, item: object) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        raise ValueError

    @remotely.batched(max_size=2, wait_ms=60_000)
    async def raises_together(self, items: list[object]) -> list[object]:
        raise ValueError

    async def fails_later(self) -> AsyncIterator[int]:  # type: ignore[override]
        yield 1
        raise ValueError


def doing(name: str) -> ActorStatus:
    return next(actor for actor in remotely.status().actors if actor.name == name)


def does(name: str, running: int, queue: int, method: str) -> bool:
    seen = doing(name)
    return (seen.running, seen.queue, seen.method) == (running, queue, method)


def test_the_running_method_is_shown(any_cluster: None) -> None:
    waiter = Waiter()
    name = remotely.status().actors[0].name
    idle = doing(name)
    assert (idle.running, idle.method) == (0, "")
    future = waiter.waits_for.submit(60.0)
    wait_until(lambda: doing(name).running == 1, "it runs")
    seen = doing(name)
    assert seen.method == "waits_for"
    assert 0 < seen.method_s < 60
    remotely.kill(waiter)
    assert future.exception()


def test_the_number_of_queued_calls_is_shown(here: None) -> None:
    waiter = Waiter()
    name = remotely.status().actors[0].name
    assert doing(name).queue == 0
    futures = [waiter.waits_for.submit(60.0) for _ in range(5)]
    wait_until(lambda: doing(name).queue == 4, "four of five wait")
    remotely.kill(waiter)
    assert all(future.exception() for future in futures)


def test_what_a_new_caller_says_of_itself_is_no_queued_call(here: None) -> None:
    waiter, asker = Waiter(), Asker()
    runs = waiter.waits_for.submit(60.0)
    wait_until(lambda: does("Waiter-1", 1, 0, "waits_for"), "it runs")
    asked = asker.asks.submit(waiter)
    wait_until(lambda: doing("Waiter-1").queue > 0, "the call of the other actor waits")
    assert doing("Waiter-1").queue == 1
    remotely.kill(waiter)
    assert runs.exception()
    assert asked.exception()


def test_a_method_that_holds_the_interpreter_is_shown(here: None) -> None:
    waiter = Waiter()
    future = waiter.holds_the_interpreter.submit(60_000_000)
    wait_until(lambda: doing("Waiter-1").method == "holds_the_interpreter", "it is seen")
    first = doing("Waiter-1").method_s
    wait_until(lambda: doing("Waiter-1").method_s > first, "time passes")
    remotely.kill(waiter)
    assert future.exception()


def test_concurrent_calls_are_counted(here: None) -> None:
    threaded, asynchronous, batched = Threaded(), Asynchronous(), Batched()
    futures = [
        *(threaded.waits_for.submit(60.0) for _ in range(5)),
        *(asynchronous.waits.submit() for _ in range(7)),
        *(batched.waits.submit(number) for number in range(4)),
    ]
    for name, running, queue, method in (
        ("Threaded-1", 3, 2, "waits_for"),
        ("Asynchronous-1", 7, 0, "waits"),
        ("Batched-1", 4, 0, "waits"),
    ):
        wait_until(functools.partial(does, name, running, queue, method), f"{name} runs {running}")
    for actor in (threaded, asynchronous, batched):
        remotely.kill(actor)
    assert all(future.exception() for future in futures)


@pytest.mark.parametrize("cls", [Failing, FailingOnThreads, FailingTasks])
def test_errors_are_counted_whichever_way_a_call_is_served(here: None, cls: type[Failing]) -> None:
    actor = cls()
    failed = [
        actor.raises.submit(1),
        actor.raises.submit(Unreadable()),
        actor.raises_together.submit(Unreadable()),
        actor.raises_together.submit(1),
        actor.raises_together.submit(2),
        actor.returns_a_lock.submit(1),
    ]
    returned = actor.returns_a_lock.submit(2)
    assert all(future.exception() for future in failed)
    assert returned.result() == 1
    with pytest.raises(ValueError):
        list(actor.fails_later())
    assert list(actor.counts()) == [1]
    with pytest.raises(StopIteration):
        next(actor)
    assert not hasattr(actor, "missing")
    name = f"{cls.__name__}-1"
    wait_until(lambda: doing(name).errors >= len(failed) + 1, "they are counted")
    wait_until(lambda: doing(name).calls == 10, "so are the calls")
    seen = doing(name)
    assert seen.errors == len(failed) + 1
    assert {each.method: each.errors for each in seen.methods if each.errors} == {
        "raises": 2,
        "raises_together": 3,
        "returns_a_lock": 1,
        "(an item of a stream)": 1,
    }


def test_a_call_that_returns_a_coroutine_counts_once_and_lasts_until_its_end(here: None) -> None:
    actor = Asynchronous()
    actor.passes_on()
    wait_until(lambda: doing("Asynchronous-1").running == 0, "it has ended")
    (row,) = [each for each in doing("Asynchronous-1").methods if each.method == "passes_on"]
    assert row.calls == 1
    assert row.mean_s >= 0.01


# --- the page -------------------------------------------------------------------------------------


def test_the_page_names_the_oldest_running_call() -> None:
    with new() as (_, page):
        several = Several(page)
        first = several.begin("first")
        second = several.begin("second", 3)
        assert look(page)[:2] == (4, "first")
        several.end(first)
        assert look(page)[:2] == (3, "second")
        several.end(second)
        assert look(page) == Seen()


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(activity.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_times_of_each_method_are_measured(clock: Clock) -> None:
    with new() as (_, page):
        one = OneByOne(page)
        for method, took in [*[("step", 0.01)] * 98, *[("step", 1.0)] * 2, ("learn", 5.0)]:
            number = one.begin(method)
            clock.now += took
            one.end(number)
        learn, step = measured(page).methods
        assert [(each.method, each.calls) for each in (learn, step)] == [
            ("learn", 1),
            ("step", 100),
        ]
        assert [learn.seconds, step.seconds] == pytest.approx([5.0, 2.98])
        assert 1.0 <= step.p99_s < 1.2
        assert measured(page).busy_s == pytest.approx(7.98)
        assert 5.0 <= learn.p99_s < 6.0


def test_of_very_short_calls_some_stand_for_all(clock: Clock) -> None:
    with new() as (_, page):
        one = OneByOne(page)
        for _ in range(10_000):
            number = one.begin("add")
            clock.now += 1e-5  # less than SHORT_S
            one.end(number)
        (add,) = measured(page).methods
        assert 10_000 - 16 <= add.calls <= 10_000
        assert add.seconds == pytest.approx(0.1, rel=0.01)


def test_of_calls_at_the_same_time_each_is_measured_and_the_time_counts_once(clock: Clock) -> None:
    with new() as (_, page):
        several = Several(page)
        first = several.begin("wait")
        clock.now += 1.0
        second = several.begin("read")
        clock.now += 1.0
        several.end(first)
        several.end(second)
        clock.now += 8.0
        found = measured(page)
        assert [each.method for each in found.methods] == ["wait", "read"]
        assert [each.seconds for each in found.methods] == pytest.approx([2.0, 1.0])
        assert found.busy_s == pytest.approx(2.0)
        several.begin("wait")
        clock.now += 4.0
        assert measured(page).busy_s == pytest.approx(6.0)  # it still runs


@pytest.mark.parametrize("kind", [OneByOne, Several])
def test_calls_that_fail_are_counted_exactly_however_short(
    clock: Clock, kind: type[OneByOne | Several]
) -> None:
    with new() as (_, page):
        writer = kind(page)
        for number in range(5000):
            begun = writer.begin("add", 2)
            clock.now += 1e-5
            writer.end(begun, errors=2 * (number % 5 == 0))
        (add,) = measured(page).methods
        assert (add.errors, measured(page).errors) == (2000, 2000)
        assert 10_000 - 2 * 16 <= add.calls <= 10_000


def test_a_writer_goes_on_with_the_methods_of_the_one_before(clock: Clock) -> None:
    with new() as (_, page):
        one = OneByOne(page)
        making = one.begin("__init__")
        several = Several(page)
        clock.now += 1.0
        one.end(making)
        several.end(several.begin("act"))
        assert [(each.method, each.calls) for each in measured(page).methods] == [
            ("__init__", 1),
            ("act", 1),
        ]


def test_a_batch_counts_each_of_its_calls(clock: Clock) -> None:
    with new() as (_, page):
        for writer in (OneByOne(page), Several(page)):
            number = writer.begin("act", 5)
            clock.now += 1.0
            writer.end(number)
        assert measured(page).calls == 10


def test_methods_without_a_place_in_the_table_share_the_last(clock: Clock) -> None:
    with new() as (_, page):
        one = OneByOne(page)
        for method in range(2 * METHODS):
            number = one.begin(f"method {method}")
            clock.now += 1.0
            one.end(number)
        found = measured(page).methods
        assert len(found) == METHODS
        assert (found[0].method, found[0].calls) == (OTHERS, METHODS + 1)


def test_any_page_can_be_measured() -> None:
    with new() as (_, page):
        page[:] = b"\xff" * len(page)  # no numbers, and more methods than there is room for
        found = measured(page)
        assert len(found.methods) == METHODS
        assert found.busy_s >= 0
        assert {each.seconds for each in found.methods} == {0.0}
        page.close()
        assert measured(page) == CallTimes()


@pytest.mark.zeromq
def test_what_the_calls_of_an_actor_took_is_shown(here: None) -> None:
    waiter = Waiter()
    for _ in range(5):
        waiter.waits_for(0.02)
    waiter.takes(np.ones(1 << 16, np.uint8))

    def main() -> MethodStatus:
        return doing("Waiter-1").methods[0]

    wait_until(lambda: doing("Waiter-1").methods, "they are measured")
    assert (main().method, main().calls) == ("waits_for", 5)
    assert 0.02 <= main().mean_s < main().p99_s * 1.01
    seen = doing("Waiter-1")
    assert seen.received > 1 << 16
    assert 1 << 16 > seen.sent > 0
    future = waiter.waits_for.submit(60.0)
    wait_until(lambda: doing("Waiter-1").busy_percent > 50, "it is busy")
    remotely.kill(waiter)
    assert future.exception()


def test_a_long_name_is_cut_and_any_page_can_be_read() -> None:
    with new() as (_, page):
        OneByOne(page).begin("é" * 100)
        assert look(page).method.startswith("é" * 31)
        page[:80] = b"\xff" * 80  # not a number
        assert look(page).method == ""


def test_counts_are_exact_with_several_threads() -> None:
    with new() as (_, page):
        several = Several(page)

        def work() -> None:
            for _ in range(500):
                several.end(several.begin("work"))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert look(page).running == 0


# --- status requests ------------------------------------------------------------------------------


def test_a_status_is_sent_when_the_last_peer_has_replied() -> None:
    asked: list[str] = []
    queries = StatusQueries(lambda who, message: asked.append(who))
    queries.query("client", 1, ["worker", "client"], now=0.0)
    queries.remove_peer("worker")
    assert queries.due(0.0) == []
    queries.query("other", 2, ["worker", "client"], now=0.1)
    assert sorted(asked) == ["client", "worker"]  # once, for both requests
    queries.remove_peer("client")
    assert queries.due(0.1) == [("client", 1), ("other", 2)]
    assert queries.due(0.1) == []


def test_a_status_does_not_wait_for_a_silent_peer_beyond_its_timeout() -> None:
    queries = StatusQueries(lambda who, message: None)
    queries.query("other", 1, ["worker", "client"], now=0.0)
    assert queries.due(STATUS_WAIT_S - 0.1) == []
    assert queries.due(STATUS_WAIT_S) == [("other", 1)]
    queries.remove_peer("worker")  # too late
    assert queries.due(9.0) == []
    queries.query("other", 2, [], now=9.0)
    assert queries.due(9.0) == [("other", 2)]


def test_an_actor_cannot_truncate_the_page_that_its_worker_reads() -> None:
    with new() as (fd, page):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        page.close()
