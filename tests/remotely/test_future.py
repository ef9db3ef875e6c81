"""The future of a call is one of the standard library's, to whoever is handed it."""

import asyncio
import concurrent.futures
import sys
import threading
from concurrent.futures import Future, InvalidStateError

import pytest

from remotely.errors import CallTimeout
from remotely.future import CallFuture, completed, failed
from tests.clusters import wait_until


def test_it_has_what_a_future_has() -> None:
    """Its constructor does by itself what that of its base would do."""
    plain = vars(Future())
    ours = vars(CallFuture("a call"))
    ours["_waiters"] = CallFuture("a call")._waiters  # a property
    assert plain.keys() <= ours.keys()
    for name, value in plain.items():
        assert isinstance(ours[name], type(value)), name
        if name != "_condition":
            assert ours[name] == value, name


def test_it_works_with_wait_and_as_completed_and_await() -> None:
    futures = [CallFuture[int]("a call") for _ in range(5)]

    def complete() -> None:
        for i, future in enumerate(futures):
            future.set_result(i)

    thread = threading.Thread(target=complete)
    done = concurrent.futures.as_completed(futures, timeout=10)
    thread.start()
    assert sorted(future.result() for future in done) == list(range(5))
    assert not concurrent.futures.wait(futures, timeout=10).not_done
    thread.join()

    async def gather() -> list[int]:
        return [await future for future in futures]

    assert asyncio.run(gather()) == list(range(5))


def test_who_waits_is_not_woken_by_another_calls_end() -> None:
    slow, quick = CallFuture[int]("slow"), CallFuture[int]("quick")
    got: list[int] = []
    threads = [threading.Thread(target=lambda f=f: got.append(f.result(10))) for f in (slow, quick)]
    for thread in threads:
        thread.start()
    quick.set_result(1)
    wait_until(lambda: got == [1], "the quick one is told")
    slow.set_result(2)
    for thread in threads:
        thread.join()
    assert got == [1, 2]


def test_a_timeout_names_the_call() -> None:
    with pytest.raises(CallTimeout, match=r"Actor-1\.sample has not answered after 0 s"):
        CallFuture("Actor-1.sample").result(timeout=0)


def test_a_call_that_has_left_cannot_be_cancelled() -> None:
    future: CallFuture[int] = CallFuture("a call")
    assert not future.cancel()
    assert future.running()
    future.set_result(1)
    assert (future.result(), future.running(), future.cancelled()) == (1, False, False)


def test_one_that_is_done_lets_go_of_its_actor_and_stays_as_it_is() -> None:
    value, error = (CallFuture[int]("a call", keep=object()) for _ in "ab")
    value.set_result(1)
    error.set_exception(LookupError())
    for future in (value, error):
        assert future.keep is None
        with pytest.raises(InvalidStateError):
            future.set_result(2)


def test_one_that_is_done_already_says_so() -> None:
    assert completed(3).result() == 3
    with pytest.raises(LookupError):
        failed(LookupError()).result()


def test_losing_a_call_that_has_its_answer_changes_nothing() -> None:
    """A connection may end just after the circle that the call waited in was told."""
    future = CallFuture[int]("a call")
    told: list[object] = []
    future.add_done_callback(told.append)
    future.settle(7, None)
    future.tell()
    future.lose(KeyError())
    future.lose(KeyError())
    future.tell()
    assert future.result(0) == 7
    assert told == [future]


def test_a_done_callback_that_exits_ends_neither_its_thread_nor_the_other_callbacks() -> None:
    future: CallFuture[int] = CallFuture("a call")
    told: list[object] = []
    future.add_done_callback(lambda _: sys.exit("in a callback"))
    future.add_done_callback(told.append)

    def complete() -> None:
        future.set_result(1)
        told.append("the thread goes on")

    thread = threading.Thread(target=complete)
    thread.start()
    thread.join()
    assert told == [future, "the thread goes on"]


def test_a_call_that_is_tried_again_tells_nobody_yet() -> None:
    told: list[object] = []
    future: CallFuture[int] = CallFuture("a call")
    future.add_done_callback(told.append)
    future.tell()
    assert not told
    future.set_result(1)
    assert told == [future]
