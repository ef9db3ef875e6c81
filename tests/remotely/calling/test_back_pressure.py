"""Back-pressure: limits on the pending calls of an actor and on the bytes of a process."""

import resource
import threading
import time
import weakref
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.calling import back_pressure
from remotely.calling.back_pressure import BackPressure, Limits, RoomForCall, wait_for_others
from remotely.client.carrier import MAX_DESCRIPTORS
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


class Actor:
    name = "Echo-1"

    def __init__(self) -> None:
        self.back_pressure = BackPressure()

    @property
    def unanswered(self) -> int:
        return self.back_pressure.calls


def call(actor: Actor) -> CallFuture[None]:
    return CallFuture("a call", actor)


def never(actor: Actor, room: RoomForCall) -> None:
    raise AssertionError("there is room")


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
    limits, actor = Limits(), Actor()
    futures = [call(actor) for _ in pending]
    for future, nbytes in zip(futures, pending, strict=True):
        limits.admit([(actor, future)], nbytes, never)
    has_waited: list[bool] = []

    def wait(actor: Actor, room: RoomForCall) -> None:
        has_waited.append(True)
        futures[-1].set_result(None)
        room.block(None)

    limits.admit([(actor, call(actor))], next_one, wait)
    assert has_waited == [True] * must_wait


def test_a_call_is_counted_until_its_outcome() -> None:
    limits, actor = Limits(), Actor()
    future = call(actor)
    limits.admit([(actor, future)], 60, never)
    counted = future.counted_by
    assert counted is not None
    assert (actor.unanswered, actor.back_pressure.nbytes, limits.taken_bytes) == (1, 60, 60)
    future.set_result(None)
    for _ in range(2):
        assert (actor.unanswered, actor.back_pressure.nbytes, limits.taken_bytes) == (0, 0, 0)
        counted.settle(future)


def test_calls_that_were_not_sent_count_no_more() -> None:
    limits, actor = Limits(), Actor()
    sent, unsent = call(actor), call(actor)
    limits.admit([(actor, sent), (actor, unsent)], 60, never)
    sent.receiver = Any  # type: ignore[assignment]
    back_pressure.settle_unsent([sent, unsent])
    assert (actor.unanswered, limits.taken_bytes) == (1, 60)


# --- the limits of a process ----------------------------------------------------------------------


def test_a_value_for_several_actors_counts_once_until_the_last_outcome() -> None:
    limits, actors = Limits(100), [Actor() for _ in range(3)]
    calls = [(actor, call(actor)) for actor in actors]
    limits.admit(calls, 60, never)
    assert limits.taken_bytes == 60
    assert [actor.back_pressure.nbytes for actor in actors] == [60] * 3
    for _, future in calls:
        assert limits.taken_bytes == 60
        future.set_result(None)
    assert limits.taken_bytes == 0


def test_no_member_of_a_group_is_counted_before_there_is_room_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may wait for each other, so the first must not be sent while the last one waits."""
    monkeypatch.setattr(back_pressure, "MAX_CALLS", 1)
    limits, first, last = Limits(), Actor(), Actor()
    busy = call(last)
    limits.admit([(last, busy)], 0, never)
    waited_for: list[Actor] = []

    def wait(actor: Actor, room: RoomForCall) -> None:
        waited_for.append(actor)
        assert first.unanswered == 0
        busy.set_result(None)

    limits.admit([(first, call(first)), (last, call(last))], 0, wait)
    assert waited_for == [last]
    assert (first.unanswered, last.unanswered) == (1, 1)


def test_a_wait_for_room_in_the_process_ends_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits, one, other = Limits(100), Actor(), Actor()
    first, second = call(one), call(other)
    limits.admit([(one, first)], 60, never)
    thread = threading.Thread(
        target=limits.admit, args=([(other, second)], 50, wait_for_others), daemon=True
    )
    thread.start()
    wait_until(lambda: bool(len(wakeup.sleepers)), "it waits")
    assert second.counted_by is None
    first.set_result(None)
    thread.join(40)
    assert second.counted_by is not None
    assert limits.taken_bytes == 50
    assert caplog.text.count("have no result yet") == 1


def test_the_first_value_and_those_of_threads_that_must_not_wait_count_at_once() -> None:
    limits, actor = Limits(100), Actor()
    limits.admit([(actor, call(actor))], 1000, never)
    limits.admit([(actor, call(actor))], 1000, None)
    assert limits.taken_bytes == 2000


@remotely.remote_class
class Member:
    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    def meet(self, value: Any, count: int) -> int:
        """Return when as many members have come here."""
        (self.folder / f"{self.number}").touch()
        while len(list(self.folder.iterdir())) < count:
            time.sleep(0.005)
        return len(value)


@pytest.mark.parametrize("way", ["group", "ref"])
def test_members_that_meet_get_one_large_value(
    any_cluster: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    monkeypatch.setattr(back_pressure, "limits", Limits(1_500_000))
    members = remotely.Group([Member(tmp_path, number) for number in range(3)])
    value = np.zeros(1_000_000, np.uint8)
    if way == "group":
        lengths = members.meet(value, 3)
    else:
        ref = remotely.put(value)
        futures = [member.meet.submit(ref, 3) for member in members]
        lengths = [future.result(40) for future in futures]
    assert lengths == [len(value)] * 3


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
