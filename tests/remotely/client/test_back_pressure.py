"""A client that is faster than its actor is held back, and told."""

import resource
import threading
import time
import weakref
from concurrent.futures import wait
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.client.back_pressure import ByteBudget
from remotely.client.client import MAX_DESCRIPTORS
from remotely.futures import in_flight, wakeup
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


def channel_of(actor: Any) -> Any:
    return actor._remotely_remote.channel


def test_calls_in_flight_are_bounded_a_handle_and_all_are_answered_in_order(
    here: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(in_flight, "MAX_CALLS", 40)
    slow = Slow()
    futures = []
    for _ in range(200):
        futures.append(slow.work.submit())
        assert len(channel_of(slow)._pending) <= 40
    assert [future.result() for future in futures] == list(range(1, 201))
    assert caplog.text.count("have no result yet") == 1


def test_bytes_in_flight_are_bounded_a_handle(
    here: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(in_flight, "MAX_BYTES", 3_500_000)
    slow = Slow()
    value = np.zeros(1_000_000, np.uint8)
    futures = []
    for _ in range(30):
        futures.append(slow.work.submit(value))
        assert channel_of(slow)._back_pressure.nbytes <= 3_500_000
    assert [future.result() for future in futures] == list(range(1, 31))
    assert channel_of(slow)._back_pressure.nbytes == 0
    assert caplog.text.count("have no result yet") == 1


def test_a_value_larger_than_the_bound_goes_alone(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "MAX_BYTES", 100_000)
    slow = Slow()
    futures = [slow.work.submit(np.zeros(1_000_000, np.uint8)) for _ in range(3)]
    assert [future.result() for future in futures] == [1, 2, 3]


def test_a_done_callback_that_submits_is_never_held_back(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "MAX_CALLS", 1)
    slow = Slow()
    over = threading.Event()

    def again(future: Any) -> None:
        if future.result() < 5:
            slow.work.submit().add_done_callback(again)
            slow.work.submit()
        else:
            over.set()

    slow.work.submit().add_done_callback(again)
    assert over.wait(20)


def test_a_dead_actor_holds_nobody_back(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MAX_CALLS", 5)
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


# --- the budget of a process ----------------------------------------------------------------------


def test_who_waits_for_the_budget_goes_on_when_there_is_room() -> None:
    budget = ByteBudget(100)
    assert budget.take(60)
    assert not budget.take(50)
    went_on = threading.Event()

    def take() -> None:
        budget.wait_for_room(50)
        assert budget.take(50)
        went_on.set()

    thread = threading.Thread(target=take)
    thread.start()
    wait_until(lambda: bool(len(wakeup.sleepers)), "it waits")
    assert not went_on.is_set()
    budget.give_back(60)
    thread.join(10)
    assert went_on.is_set()


def test_the_first_and_who_may_not_wait_pass_at_once() -> None:
    budget = ByteBudget(100)
    budget.wait_for_room(1000)
    assert budget.take(1000)
    assert budget.take(1000, force=True)
    budget.give_back(2000)
    budget.wait_for_room(100)
    assert budget.take(100)


# --- the descriptors of a script ------------------------------------------------------------------


def test_a_script_may_open_as_many_files_as_its_machine_permits(nothing_left: None) -> None:
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


def test_results_are_kept_with_their_futures_and_go_with_them(here: None) -> None:
    """They are not counted: an actor never waits for a reader."""
    slow = Slow()
    futures = [slow.give.submit(1 << 20) for _ in range(50)]
    wait([futures[-1]], timeout=20)
    assert channel_of(slow)._back_pressure.nbytes == 0
    assert all(len(future.result()) == 1 << 20 for future in futures)
    gone = [weakref.ref(future) for future in futures]
    futures.clear()
    # The thread that handed the last one over may be at its end just now.
    wait_until(lambda: not any(one() for one in gone), "they are gone")
