"""Calls on actors: their values, order and threads."""

import asyncio
import concurrent.futures
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.client import channel
from remotely.client.channel import HOLD_ABOVE, Channel
from remotely.futures.future import CallFuture
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import arena, codec
from tests.clusters import wait_until


@dataclass
class Point:
    x: float
    y: Any


class Pair(NamedTuple):
    left: Any
    right: Any


@remotely.remote_class
class Echo:
    rate = 0.5

    def __init__(self, start: int = 0) -> None:
        self.value: Any = start
        self.seen: list[int] = []

    def echo(self, value: Any) -> Any:
        return value

    def add(self, number: int, *, times: int = 1) -> int:
        self.value += number * times
        return int(self.value)

    def note(self, number: int) -> list[int]:
        self.seen.append(number)
        return self.seen

    def pid(self) -> int:
        return os.getpid()

    def leave(self) -> None:
        sys.exit(3)

    def wait_for_file(self, path: str) -> bool:
        while not os.path.exists(path):
            time.sleep(0.001)
        return True

    def sum_of(self, array: Any) -> float:
        return float(array.sum())

    @property
    def doubled(self) -> int:
        return int(self.value * 2)


@remotely.remote_class
class Clock:
    """A class with asynchronous methods."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.noon = asyncio.Event()

    async def tick(self, seconds: float) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(seconds)
        self.running -= 1
        return self.most

    def peak(self) -> int:
        return self.most

    async def wait_for_noon(self) -> None:
        await self.noon.wait()

    async def strike_noon(self) -> None:
        self.noon.set()


@remotely.remote_class(concurrency=4)
class Meeting:
    def __init__(self) -> None:
        self.barrier = threading.Barrier(4)

    def meet(self) -> int:
        return self.barrier.wait(timeout=40)


@remotely.remote_class(wait=False)
class Eager:
    def twice(self, number: int) -> int:
        return 2 * number


@remotely.remote_class
class Boss:
    """An actor that makes and calls other actors."""

    def delegate(self, number: int) -> int:
        helper = Echo(number)
        return helper.add(1)

    def call(self, other: Echo, number: int) -> int:
        return other.add(number)

    def call_all(self, group: "remotely.Group[Echo]", number: int) -> Any:
        return group.add(number)


@remotely.remote_class
class Debut:
    """Makes its first call to another actor, with a function of a module that is sent as source."""

    def __init__(self, other: Any) -> None:
        self.other = other
        self.function = wait_until

    def newly_imported(self) -> set[str]:
        before = set(sys.modules)
        assert self.other.echo(self.function) is self.function
        return set(sys.modules) - before


def test_calls_run_in_another_process_on_one_object(cluster: str) -> None:
    echo = Echo(5)

    assert echo.add(2) == 7
    assert echo.add(1, times=3) == 10
    assert echo.pid() != os.getpid()


def test_the_first_call_of_an_actor_to_another_imports_nothing(here: None) -> None:
    assert not Debut(Echo()).newly_imported()


def test_values_arrive_equal_and_of_the_same_class(here: None) -> None:
    echo = Echo()
    nested = {"a": [1, 2.5, (3, {4})]}
    for value in (None, "text", b"\0" * 100_000, nested, Point(1.0, Pair("l", [Point(2, 3)]))):
        arrived = echo.echo(value)
        assert (type(arrived), arrived) == (type(value), value)
    assert echo.echo(lambda: 3)() == 3


def test_arrays_arrive_equal_writable_and_private(cluster: str) -> None:
    echo = Echo()
    for size in (0, 10, 100_000, 3_000_000):
        sent = np.arange(size, dtype=np.float32)
        arrived = echo.echo(sent)
        assert np.array_equal(arrived, sent)
        assert arrived.dtype == sent.dtype
        arrived += 1
        assert np.array_equal(sent, np.arange(size, dtype=np.float32))


def test_a_ref_arrives_as_the_value(any_cluster: None) -> None:
    echo = Echo()
    ref = remotely.put(np.ones(50_000))

    assert [echo.sum_of(ref) for _ in range(3)] == [50_000.0] * 3
    assert echo.echo({"inside": ref})["inside"].shape == (50_000,)


def test_submit_returns_at_once_and_its_future_has_the_value(
    any_cluster: None, tmp_path: Path
) -> None:
    echo = Echo()

    first = echo.wait_for_file.submit(str(tmp_path / "gate"))
    second = echo.add.submit(4)

    assert not first.done()
    assert isinstance(first, concurrent.futures.Future)
    (tmp_path / "gate").touch()
    assert second.result() == 4
    assert first.result() is True


def test_remotely_submit_is_the_typed_form_of_submit(here: None) -> None:
    echo = Echo(1)

    assert remotely.submit(echo.add, 2).result() == 3
    assert remotely.submit(max, 2, 5).result() == 5


def test_a_done_callback_may_call_the_same_actor_and_wait(here: None) -> None:
    echo = Echo()
    answers: list[int] = []

    future = echo.add.submit(1)
    future.add_done_callback(lambda _: answers.append(echo.add(10)))
    future.result()

    wait_until(lambda: answers == [11], "the callback has waited")


def test_a_done_callback_may_ask_the_master_and_make_actors(here: None) -> None:
    told: list[object] = []

    def ask(future: Any) -> None:
        told.append(len(remotely.status().actors))
        told.append(Echo(2).add(future.result()))

    echo = Echo()
    echo.add.submit(1).add_done_callback(ask)
    wait_until(lambda: len(told) == 2, "both answers")
    assert told == [1, 3]


def test_blocking_and_submitted_calls_of_many_threads_do_not_lose_a_reply(here: None) -> None:
    echo = Echo()

    def both(number: int) -> tuple[int, int]:
        future = echo.echo.submit(number)
        return echo.echo(-number), future.result()

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(both, range(300)))

    assert answers == [(-n, n) for n in range(300)]


def test_attributes_are_read_and_written_in_the_actor(any_cluster: None) -> None:
    echo = Echo(3)

    echo.value = 20
    echo.note_of_mine = "kept"

    assert echo.add(1) == 21
    assert echo.value == 21
    assert echo.doubled == 42
    assert echo.rate == 0.5
    assert echo.note_of_mine == "kept"


def test_async_methods_interleave(any_cluster: None) -> None:
    clock = Clock()

    futures = [clock.tick.submit(0.1) for _ in range(5)]

    for future in futures:
        future.result()
    assert clock.peak() == 5


def test_an_async_actor_runs_thousands_of_calls_at_a_time(any_cluster: None) -> None:
    clock = Clock()
    waiting = [clock.wait_for_noon.submit() for _ in range(2_000)]
    clock.strike_noon.submit().result()
    for future in waiting:
        assert future.result() is None


def test_concurrency_is_the_number_of_calls_at_a_time(any_cluster: None) -> None:
    meeting = Meeting()

    arrived = [meeting.meet.submit() for _ in range(4)]

    assert {future.result() for future in arrived} == {0, 1, 2, 3}


def test_wait_false_makes_plain_calls_return_futures(here: None) -> None:
    eager = Eager()

    assert eager.twice(4).result() == 8


def test_an_actor_makes_and_calls_others(any_cluster: None) -> None:
    boss, echo = Boss(), Echo(1)

    assert boss.delegate(5) == 6
    assert boss.call(echo, 3) == 4
    assert echo.value == 4


def test_a_group_is_called_as_one(any_cluster: None) -> None:
    echoes = remotely.group(Echo, 3, 10)

    assert echoes.add(5) == [15, 15, 15]
    assert echoes[1].add(1) == 16
    assert echoes.value == [15, 16, 15]
    echoes.value = 0
    assert [echo.value for echo in echoes] == [0, 0, 0]
    assert len(echoes) == 3
    assert len(echoes[1:]) == 2
    assert sorted(f.result() for f in remotely.as_completed(echoes.add.submit(1))) == [1, 1, 1]
    assert len({echo.pid() for echo in echoes}) == 3


def test_a_group_can_be_made_of_handles_and_travels(here: None) -> None:
    echoes = remotely.Group([Echo(1), Echo(2)])

    assert Boss().call_all(echoes, 10) == [11, 12]
    with pytest.raises(TypeError, match="made of handles"):
        remotely.Group([1])


def test_a_group_call_waits_for_all_members_before_it_raises(here: None) -> None:
    echoes = remotely.group(Echo, 2)
    echoes[0].value = "not a number"

    with pytest.raises(TypeError):
        echoes.add(1)
    assert echoes[1].value == 1


def test_an_interrupt_while_waiting_leaves_the_channel_usable(here: None, tmp_path: Path) -> None:
    echo = Echo()

    def interrupt(future: Any) -> None:
        raise KeyboardInterrupt

    gate = tmp_path / "gate"
    waiting = echo.wait_for_file.submit(str(gate))
    real = waiting.block
    waiting.block = interrupt
    waiting.receiver = None
    with pytest.raises(KeyboardInterrupt):
        waiting.result()

    waiting.block = real
    gate.touch()
    assert waiting.result() is True
    assert echo.echo(1) == 1


def test_modules_beside_the_script_travel_by_value(any_cluster: None, tmp_path: Any) -> None:
    (tmp_path / "beside_the_script.py").write_text(
        "FACTOR = 3\ndef scale(n):\n    return n * FACTOR\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        import beside_the_script  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))

    @remotely.remote_class
    class Scaler:
        def scale(self, number: int) -> int:
            return int(beside_the_script.scale(number))

    assert Scaler().scale(4) == 12


def test_calls_sent_together_are_answered_in_order_with_their_errors(
    cluster: str,
) -> None:
    echo = Echo()
    futures = [echo.add.submit("x" if i % 50 == 7 else 1) for i in range(1000)]
    expected = 0
    for i, future in enumerate(futures):
        if i % 50 == 7:
            with pytest.raises(TypeError):
                future.result()
        else:
            expected += 1
            assert future.result() == expected


def test_a_result_is_not_held_back_by_the_call_after_it(here: None, tmp_path: Any) -> None:
    """The waiter for the first results may be what ends the call after them."""
    gate = tmp_path / "gate"
    echo = Echo()
    futures = [echo.echo.submit(i) for i in range(60)]
    waiting = echo.wait_for_file.submit(str(gate))
    more = [echo.echo.submit(i) for i in range(60)]
    assert [future.result(timeout=40) for future in futures] == list(range(60))
    gate.touch()
    assert waiting.result()
    assert [future.result() for future in more] == list(range(60))


def test_held_calls_are_sent_without_a_waiter(here: None) -> None:
    echo = Echo()
    arrived: list[int] = []
    for i in range(100):
        echo.note.submit(i).add_done_callback(lambda _, i=i: arrived.append(i))
    wait_until(lambda: len(arrived) == 100, "all calls were made and answered")
    futures = [echo.note.submit(i) for i in range(100)]
    wait_until(lambda: all(future.done() for future in futures), "and again, without callbacks")


def test_replies_before_an_exit_in_the_same_batch_arrive(here: None) -> None:
    echo = Echo()
    assert echo.echo(0) == 0
    before = [echo.echo.submit(i) for i in range(60)]
    exits = echo.leave.submit()
    after = [echo.echo.submit(i) for i in range(20)]
    assert [future.result() for future in before] == list(range(60))
    for future in (exits, *after):
        with pytest.raises(remotely.ActorDied):
            future.result()


def test_a_value_of_more_arrays_than_a_message_has_frames_arrives(here: None) -> None:
    many = [np.full(2000, n) for n in range(5000)]
    assert [int(array[0]) for array in Echo().echo(many)] == list(range(5000))


def test_a_too_large_call_raises_and_the_next_call_works(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 1 << 20)
    monkeypatch.setattr(arena, "SUPPORTED", False)  # shared memory has no such limit
    echo = Echo()
    with pytest.raises(remotely.TooLarge, match="send it in parts"):
        echo.echo(np.zeros(1 << 20))
    assert echo.echo(7) == 7


def test_a_second_request_to_construct_an_actor_is_refused(here: None) -> None:
    echo = Echo(7)
    line = remote_of(echo).channel
    nothing = codec.encode((Echo, (), {}))

    for kind in (Kind.INIT, Kind.PREPARE):
        again: CallFuture[Any] = CallFuture("the actor")
        line.send(kind, "", nothing, again, background=True)
        with pytest.raises(remotely.RemotelyError, match="has already been created"):
            again.result(40)

    assert echo.value == 7


def test_a_held_call_is_cancelled_locally(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "CHECK_AFTER_S", 3600)  # held calls are only sent for a waiter
    echo = Echo()
    futures = {number: echo.note.submit(number) for number in range(HOLD_ABOVE + 10)}
    held = [number for number, future in futures.items() if not future.running()]
    assert held
    monkeypatch.setattr(Channel, "cancel", lambda *_, **__: False)

    cancelled = {number for number, future in futures.items() if future.cancel()}

    assert cancelled == set(held)
    done = concurrent.futures.wait([futures[number] for number in held], timeout=0).done
    assert all(future.cancelled() and future.cancel() for future in done)
    assert len(done) == len(held)
    with pytest.raises(concurrent.futures.CancelledError):
        futures[held[0]].result()
    later = echo.note.submit(1000)
    assert echo.note(1001) == [*sorted(futures.keys() - cancelled), 1000, 1001]
    assert not later.cancel()


def test_cancel_agrees_with_what_ran_while_calls_are_sent_and_answered(here: None) -> None:
    echo = Echo()
    cancelled: set[int] = set()
    for begin in range(0, 2000, 200):
        futures = {n: echo.note.submit(n) for n in range(begin, begin + 200)}
        cancelled |= {n for n, future in futures.items() if n % 3 == 0 and future.cancel()}
        left = [future for n, future in futures.items() if n not in cancelled]
        assert not concurrent.futures.wait(left, timeout=40).not_done

    assert echo.note(2000) == [n for n in range(2001) if n not in cancelled]
