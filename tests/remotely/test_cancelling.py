"""Cancellation: a call that has not begun is cancelled wherever it waits; a running one goes on."""

import asyncio
import concurrent.futures
import os
import signal
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.client import channel
from remotely.values import arena
from tests.clusters import freeze, wait_until


@remotely.remote_class(cpus=0)
class Noter:
    def __init__(self) -> None:
        self.noted: list[Any] = []

    def note(self, number: int, value: Any = None) -> int:
        self.noted.append(number)
        return number

    def wait(self, gate: str) -> str:
        Path(gate + ".begun").touch()
        wait_until(Path(gate).exists, "the gate")
        return gate

    def all(self) -> list[Any]:
        return self.noted

    def pid(self) -> int:
        return os.getpid()


@remotely.remote_class(cpus=0)
class Batcher:
    def __init__(self) -> None:
        self.noted: list[int] = []

    def wait(self, gate: str) -> None:
        Path(gate + ".begun").touch()
        wait_until(Path(gate).exists, "the gate")

    @remotely.batched
    def note(self, numbers: list[int]) -> list[int]:
        self.noted += numbers
        return numbers

    def all(self) -> list[int]:
        return self.noted


def busy(actor: Any, tmp_path: Path, name: str = "gate") -> tuple[Any, Path]:
    """Have an actor run a call that ends when the returned file exists."""
    gate = tmp_path / name
    future = actor.wait.submit(str(gate))
    wait_until(Path(f"{gate}.begun").exists, "it runs")
    return future, gate


def test_calls_that_have_not_begun_are_cancelled_and_the_running_one_goes_on(
    any_cluster: None, tmp_path: Path
) -> None:
    actor = Noter()
    running, gate = busy(actor, tmp_path)
    futures = [actor.note.submit(number) for number in range(30)]
    assert [future.cancel() for future in futures[::2]] == [True] * 15
    assert not running.cancel()
    assert not running.cancelled()
    assert all(future.cancelled() and future.cancel() for future in futures[::2])
    with pytest.raises(CancelledError):
        futures[0].result()
    gate.touch()
    assert running.result() == str(gate)
    assert [future.result() for future in futures[1::2]] == list(range(1, 30, 2))
    assert actor.all() == list(range(1, 30, 2))
    assert not futures[1].cancel()


def test_a_call_that_waits_for_a_thread_is_cancelled(here: None, tmp_path: Path) -> None:
    actor = remotely.options(Noter, concurrency=2)()
    first, one = busy(actor, tmp_path, "one")
    second, two = busy(actor, tmp_path, "two")
    futures = [actor.note.submit(number) for number in range(10)]
    assert all(future.cancel() for future in futures[5:])
    assert not first.cancel()
    one.touch()
    two.touch()
    assert [future.result() for future in (first, second, *futures[:5])][2:] == list(range(5))
    assert sorted(actor.all()) == list(range(5))


def test_a_plain_call_of_an_async_class_that_waits_for_a_thread_is_cancelled(
    here: None, tmp_path: Path
) -> None:
    @remotely.remote_class(cpus=0, concurrency=1)
    class Mixed(Noter):
        async def note_async(self, number: int) -> int:
            self.noted.append(number)
            return number

        @remotely.batched
        def note_batched(self, numbers: list[int]) -> list[int]:
            self.noted += numbers
            return numbers

    actor: Any = remotely.options(Mixed, concurrency=2)()
    first, one = busy(actor, tmp_path, "one")
    second, two = busy(actor, tmp_path, "two")
    waiting = actor.note.submit(1)
    assert actor.note_async(2) == 2  # on the event loop, past calls that wait for a thread
    begun = actor.note_async.submit(3)
    assert begun.result() == 3
    assert not begun.cancel()
    later = actor.note.submit(4)
    assert later.cancel()
    one.touch()
    two.touch()
    first.result()
    second.result()
    assert waiting.result() == 1
    assert actor.note_batched(5) == 5
    assert sorted(actor.all()) == [1, 2, 3, 5]


def test_calls_of_a_batched_method_are_cancelled(here: None, tmp_path: Path) -> None:
    actor = Batcher()
    running, gate = busy(actor, tmp_path)
    futures = [actor.note.submit(number) for number in range(10)]
    assert all(future.cancel() for future in futures[:4])
    gate.touch()
    running.result()
    assert [future.result() for future in futures[4:]] == list(range(4, 10))
    assert actor.all() == list(range(4, 10))


def test_a_borrower_cancels_only_its_own_call(here: None, tmp_path: Path) -> None:
    @remotely.remote_class(cpus=0)
    class Borrower:
        def submit_and_cancel(self, actor: Noter, number: int) -> bool:
            return remotely.submit(actor.note, number).cancel()

    actor, borrower = Noter(), Borrower()
    running, gate = busy(actor, tmp_path)
    mine = actor.note.submit(1)
    assert borrower.submit_and_cancel(actor, 2)
    gate.touch()
    running.result()
    assert mine.result() == 1
    assert actor.all() == [1]


def test_large_arguments_of_a_cancelled_call_are_freed(here: None, tmp_path: Path) -> None:
    actor = Noter()
    for _ in range(3):  # memory is shared by then
        actor.note(-1, np.zeros(1 << 20))
    running, gate = busy(actor, tmp_path)
    ours = arena.ours()
    assert ours is not None
    before = ours.lent_bytes  # of other tests in this process
    futures = [actor.note.submit(number, np.zeros(1 << 20)) for number in range(3)]
    assert all(future.cancel() for future in futures)
    assert actor._remotely_remote.back_pressure.nbytes == 0
    gate.touch()
    running.result()
    assert actor.all() == [-1] * 3
    wait_until(lambda: ours.lent_bytes <= before, "the blocks are released")


def test_cancelling_runs_callbacks_and_wakes_waiters(here: None, tmp_path: Path) -> None:
    actor = Noter()
    running, gate = busy(actor, tmp_path)
    future = actor.note.submit(1)
    told: list[Any] = []
    future.add_done_callback(told.append)
    waiter = threading.Thread(target=lambda: told.append(future.exception is None))
    waiter.start()
    assert future.cancel()
    waiter.join()
    assert told.count(future) == 1
    assert future in concurrent.futures.wait([future, running], timeout=0).done
    gate.touch()
    running.result()


def test_an_awaited_call_is_cancelled_with_its_task(here: None, tmp_path: Path) -> None:
    actor = Noter()
    running, gate = busy(actor, tmp_path)

    async def main() -> Any:
        future = actor.note.submit(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(future), 0.01)
        return future

    future = asyncio.run(main())
    assert actor.note.submit(2).cancel()  # after the other request, since they are in order
    gate.touch()
    running.result()
    wait_until(future.cancelled, "it was taken back")
    assert actor.all() == []


def test_a_cancelled_await_never_stops_the_event_loop(here: None) -> None:
    actor = Noter()
    pid = actor.pid()
    freeze(pid)  # so that it cannot answer

    async def main() -> None:
        for number in range(10):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(actor.note.submit(number), 0.01)

    try:
        asyncio.run(main())
    finally:
        os.kill(pid, signal.SIGCONT)


def test_cancel_returns_false_when_the_actor_does_not_answer_in_time(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CANCEL_REPLY_S", 0.5)
    actor = Noter()
    pid = actor.pid()
    freeze(pid)
    future = actor.note.submit(1)
    wait_until(future.running, "it has left")
    try:
        assert not future.cancel()  # which returns before the actor goes on
    finally:
        os.kill(pid, signal.SIGCONT)
    # The request arrives late; the call either runs or is cancelled, never both.
    try:
        assert future.result(40) == 1
        assert actor.all() == [1]
    except CancelledError:
        assert actor.all() == []


def test_a_call_to_a_dead_actor_is_not_cancelled(here: None, tmp_path: Path) -> None:
    actor = Noter()
    running, _ = busy(actor, tmp_path)
    future = actor.note.submit(1)
    remotely.kill(actor)
    assert not future.cancel()
    with pytest.raises(remotely.ActorDied):
        future.result()
    with pytest.raises(remotely.ActorDied):
        running.result()


def test_a_done_callback_may_cancel_a_call_that_was_sent(here: None, tmp_path: Path) -> None:
    actor, other = Noter(), Noter()
    running, gate = busy(actor, tmp_path)
    future = actor.note.submit(1)
    said: list[bool] = []

    other.note.submit(1).add_done_callback(lambda _: said.append(future.cancel()))
    wait_until(lambda: said == [True], "the answer")
    gate.touch()
    running.result()
    assert actor.all() == []


def test_a_call_that_waits_for_a_future_is_cancelled_and_unblocks_later_calls(
    here: None, tmp_path: Path
) -> None:
    source, actor = Noter(), Noter()
    running, gate = busy(source, tmp_path)
    first = actor.note.submit(1, running)
    second = actor.note.submit(2, running)
    behind = actor.note.submit(3)
    assert not first.running()

    assert second.cancel()
    assert first.cancel()

    assert behind.result(timeout=40) == 3  # though the gate is shut
    assert not running.done()
    gate.touch()
    running.result()
    assert actor.note(4) == 4
    assert actor.all() == [3, 4]


def test_a_call_that_was_sent_is_cancelled_by_its_actor(here: None, tmp_path: Path) -> None:
    source, actor = Noter(), Noter()
    running, gate = busy(source, tmp_path, "one")
    mine, other_gate = busy(actor, tmp_path, "two")
    waiting = actor.note.submit(1, running)
    gate.touch()
    running.result()
    wait_until(waiting.running, "it has left")
    assert waiting.cancel()
    other_gate.touch()
    mine.result()
    assert actor.all() == []
