"""Back-pressure: limits on the pending calls of an actor and on the bytes of a process."""

import resource
import threading
import time
import weakref
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.calling import back_pressure
from remotely.calling.back_pressure import BackPressure, ByteBudget
from remotely.client.client import MAX_DESCRIPTORS
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from tests.clusters import wait_until


@remotely.remote_class
class Slow:
    def __init__(self) -> None:
        self.count = 0

    def work(self, value: Any = None, seconds: float = 0.002) -> int:
        time.sleep(seconds)
        self.count += 1
        return self.count

    def give(self, nbytes: int) -> bytes:
        return bytes(nbytes)


@remotely.remote_class(concurrency=2)
class Service:
    def __init__(self) -> None:
        self.stopped = threading.Event()

    def run(self) -> str:
        self.stopped.wait()
        return "stopped"

    def look(self) -> int:
        return 7

    def stop(self) -> None:
        self.stopped.set()


def test_pending_calls_are_limited_per_actor_and_answered_in_order_with_one_warning(
    here: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_CALLS", 40)
    slow = Slow()
    futures = []
    for _ in range(200):
        futures.append(slow.work.submit())
        assert remote_of(slow).unanswered <= 40
    assert [future.result() for future in futures] == list(range(1, 201))
    assert caplog.text.count("have no result yet") == 1


def test_bytes_in_flight_are_limited_per_actor(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_pressure, "MAX_BYTES", 3_500_000)
    slow = Slow()
    value = np.zeros(1_000_000, np.uint8)
    futures = []
    for _ in range(30):
        futures.append(slow.work.submit(value))
        assert remote_of(slow).back_pressure.nbytes <= 3_500_000
    assert [future.result() for future in futures] == list(range(1, 31))
    assert remote_of(slow).back_pressure.nbytes == 0


def test_a_call_with_a_large_future_is_sent_before_later_calls_that_fill_the_limit(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_BYTES", 3_500_000)
    slow, maker = Slow(), Slow()
    value = np.zeros(1_000_000, np.uint8)
    made = maker.give.submit(1_000_000)
    futures = [slow.work.submit(made), *(slow.work.submit(value) for _ in range(6))]
    assert [future.result(40) for future in futures] == list(range(1, 8))


def test_a_done_callback_that_submits_never_waits_for_room(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_CALLS", 1)
    slow = Slow()
    over = threading.Event()

    def again(future: Any) -> None:
        if future.result() < 5:
            slow.work.submit().add_done_callback(again)
            slow.work.submit()
        else:
            over.set()

    slow.work.submit().add_done_callback(again)
    assert over.wait(40)


def test_submit_does_not_wait_for_room_at_a_dead_actor(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_CALLS", 5)
    slow = Slow()
    futures = [slow.work.submit(seconds=60.0) for _ in range(5)]
    killer = threading.Timer(0.2, lambda: remotely.close(slow, grace_s=0))
    killer.start()
    with pytest.raises(remotely.ActorDied):
        slow.work.submit().result()
    for future in futures:
        with pytest.raises(remotely.ActorDied):
            future.result()
    killer.join()


def test_an_endless_call_does_not_block_others(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_CALLS", 10)
    service = Service()
    running = service.run.submit()
    assert [service.look.submit().result() for _ in range(50)] == [7] * 50
    for _ in range(50):
        service.look.submit()
    service.stop()
    assert running.result() == "stopped"


# --- the limits of one actor ----------------------------------------------------------------------


@dataclass
class Actor:
    name = "Echo-1"
    back_pressure: BackPressure

    @property
    def unanswered(self) -> int:
        return self.back_pressure.calls


def counted(*sizes: int) -> tuple[Actor, list[CallFuture[None]]]:
    actor = Actor(BackPressure(ByteBudget()))
    futures: list[CallFuture[None]] = [CallFuture("a call", actor) for _ in sizes]
    for future, nbytes in zip(futures, sizes, strict=True):
        actor.back_pressure.count(future, nbytes, may_wait=True)
    return actor, futures


@pytest.mark.parametrize(
    ("pending", "next_one", "must_wait"),
    [
        ([0], 0, False),
        ([0, 0], 0, True),
        ([60], 40, False),
        ([60], 41, True),
        ([0], 101, False),  # a value may exceed the limit if it is alone
    ],
)
def test_a_call_waits_while_the_pending_ones_reach_a_limit(
    pending: list[int], next_one: int, must_wait: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "MAX_CALLS", 2)
    monkeypatch.setattr(back_pressure, "MAX_BYTES", 100)
    actor, futures = counted(*pending)
    has_waited: list[bool] = []

    def wait(room: Any, timeout: float | None) -> None:
        has_waited.append(True)
        futures[-1].set_result(None)
        room.block(timeout)

    actor.back_pressure.wait_for_room(actor, next_one, wait)
    assert has_waited == [True] * must_wait


def test_a_call_is_counted_once_until_its_outcome() -> None:
    actor, (future,) = counted(60)
    actor.back_pressure.count(future, 60, may_wait=True)
    assert (actor.back_pressure.calls, actor.back_pressure.nbytes) == (1, 60)
    for _ in range(2):
        actor.back_pressure.settle(future)
        assert (actor.back_pressure.calls, actor.back_pressure.nbytes) == (0, 0)


# --- the budget of a process ----------------------------------------------------------------------


def test_a_wait_for_the_budget_ends_when_there_is_room() -> None:
    budget = ByteBudget(100)
    assert budget.take(60)
    assert not budget.take(50)
    taken = threading.Event()

    def take() -> None:
        budget.wait_for_room(50)
        assert budget.take(50)
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    wait_until(lambda: bool(len(wakeup.sleepers)), "it waits")
    assert not taken.is_set()
    budget.give_back(60)
    thread.join(40)
    assert taken.is_set()


def test_the_first_value_and_forced_values_do_not_wait_for_the_budget() -> None:
    budget = ByteBudget(100)
    budget.wait_for_room(1000)
    assert budget.take(1000)
    assert budget.take(1000, force=True)
    budget.give_back(2000)
    budget.wait_for_room(100)
    assert budget.take(100)


# --- descriptors ----------------------------------------------------------------------------------


def test_connecting_raises_the_limit_of_open_files(nothing_left: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        remotely.connect(cpus=1)
        raised, kept = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised == min(hard, MAX_DESCRIPTORS)
        assert kept == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- results --------------------------------------------------------------------------------------


def test_results_live_as_long_as_their_futures_and_do_not_count(here: None) -> None:
    slow = Slow()
    futures = [slow.give.submit(1 << 20) for _ in range(50)]
    wait([futures[-1]], timeout=40)
    assert remote_of(slow).back_pressure.nbytes == 0
    assert all(len(future.result()) == 1 << 20 for future in futures)
    gone = [weakref.ref(future) for future in futures]
    futures.clear()
    # The thread that delivered the last one may still hold it for a moment.
    wait_until(lambda: not any(one() for one in gone), "they are gone")
