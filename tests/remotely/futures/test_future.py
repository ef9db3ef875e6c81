"""The future of a call behaves as a future of the standard library."""

import asyncio
import concurrent.futures
import gc
import itertools
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import remotely.futures.future
import remotely.futures.wakeup
import remotely.machine.task_thread
from remotely.errors import CallTimeout
from remotely.futures import callbacks, wakeup
from remotely.futures.awaitable import AwaitableFuture, OutcomeLock
from remotely.futures.future import CallFuture, as_completed
from remotely.futures.reference import StoredResult
from remotely.machine.task_thread import TaskThread
from remotely.values.payload import Parcel
from tests.clusters import wait_until
from tests.forks import raised_in_a_fork
from tests.striking import struck_after


def test_it_has_the_attributes_of_a_future() -> None:
    """Its constructor sets what the constructor of the base class would."""
    plain = vars(Future())
    ours = vars(CallFuture("a call"))
    for name in ("_waiters", "_condition"):  # properties
        ours[name] = getattr(CallFuture("a call"), name)
    assert plain.keys() <= ours.keys()
    for name, value in plain.items():
        if name == "_condition":  # it has what the standard library uses of it
            assert isinstance(ours[name], OutcomeLock)
        else:
            assert isinstance(ours[name], type(value)), name
            assert ours[name] == value, name


def test_a_stored_result_is_fetched_once_for_several_threads() -> None:
    fetched: list[str] = []
    others_wait = threading.Event()

    def fetch() -> str:
        fetched.append("value")
        others_wait.wait(0.05)  # while the others come here too
        return "value"

    future: CallFuture[Any] = CallFuture("a call")
    future.is_passed_on = True
    future.set_result(StoredResult(Parcel(b"name", 1, []), fetch, lambda *_: None))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: future.result(), range(4))) == ["value"] * 4
    assert fetched == ["value"]


def test_locking_one_future_does_not_lock_another() -> None:
    """`wait` locks all its futures, of which some may be the standard library's."""
    locked: list[bool] = []
    one, other = CallFuture[int]("one"), CallFuture[int]("other")
    with one._condition:
        thread = threading.Thread(
            target=lambda: locked.append(other._condition.acquire(timeout=40))
        )
        thread.start()
        thread.join()
    assert locked == [True]


def test_a_waiter_that_is_added_under_the_condition_is_notified() -> None:
    future = CallFuture[int]("a call")
    notified: list[object] = []
    with future._condition:
        thread = threading.Thread(target=future.set_result, args=(1,))
        thread.start()
        thread.join(0.1)
        assert not future.done()
        future._waiters.append(SimpleNamespace(add_result=notified.append))
    thread.join()
    assert notified == [future]


def test_callbacks_run_if_an_interrupt_strikes_while_the_call_is_cancelled() -> None:
    class Interrupted:
        """The receiver of a call that is not sent yet."""

        def recall(self, _: object) -> bool:
            signal.raise_signal(signal.SIGINT)
            return True

        def receive_in_background(self) -> None: ...

    future: Any = CallFuture("a call")
    future.receiver = Interrupted()
    called: list[object] = []
    future.add_done_callback(called.append)
    with pytest.raises(KeyboardInterrupt):
        future.cancel()
    assert future.cancelled()
    callbacks.users.finish(within_s=40)
    assert called == [future]


@pytest.fixture
def engine() -> Iterator[TaskThread]:
    """Lend the thread of an engine."""
    thread = TaskThread("an engine")
    callbacks.lend(thread)
    yield thread
    callbacks.withdraw(thread)
    thread.finish(within_s=40)


@pytest.mark.parametrize("module", [remotely.futures.future, remotely.machine.task_thread])
def test_a_callback_runs_once_wherever_an_interrupt_strikes(
    engine: TaskThread, module: ModuleType
) -> None:
    for n in itertools.count(1):
        called: list[object] = []
        future = CallFuture[int]("a call")
        future.add_done_callback(called.append)
        future.then(called.append)
        with (
            suppress(KeyboardInterrupt),
            struck_after(n, signal.SIGINT, module) as has_struck,
        ):
            future.set_result(1)
        if not future.done():
            future.settle(1, None)
        future.settle(1, None)  # as the loop does after an interrupt
        future.run_callbacks()
        callbacks.users.finish(within_s=40)
        engine.finish(within_s=40)
        assert called == [future, future]
        if not has_struck:
            break
    assert n > 1


def test_an_interrupt_of_a_waiting_thread_leaves_all_locks_free() -> None:
    for n in itertools.count(1):
        future = CallFuture[int]("a call")
        with (
            suppress(KeyboardInterrupt, CallTimeout),
            struck_after(n, signal.SIGINT, remotely.futures.wakeup) as has_struck,
        ):
            future.result(timeout=0.001)
        thread = threading.Thread(target=future.set_result, args=(n,))
        thread.start()
        assert future.result(timeout=40) == n
        thread.join()
        if not has_struck:
            break
    assert n > 1


def test_a_forked_child_has_none_of_its_parents_sleepers() -> None:
    with ThreadPoolExecutor() as pool:
        future = CallFuture[int]("a call")
        pool.submit(future.result)
        wait_until(lambda: len(wakeup.sleepers) == 1, "a thread that sleeps")
        child = os.fork()
        if not child:
            os._exit(len(wakeup.sleepers))
        future.set_result(1)
    assert os.waitpid(child, 0)[1] == 0


WAYS: dict[str, Callable[[Any], object]] = {
    "result": lambda future: future.result(1),
    "exception": lambda future: future.exception(1),
    "polling": lambda future: wait_until(future.done, "it is done"),
    "running": lambda future: future.running(),
    "cancel": lambda future: future.cancel(),
    "a callback": lambda future: future.add_done_callback(print),
    "wait": lambda future: concurrent.futures.wait([future]),
    "as_completed": lambda future: list(as_completed([future])),
    "await": lambda future: asyncio.run(_result_of(future)),
    "asyncio.wait": lambda future: asyncio.run(_wait_for(future)),
}


async def _result_of(future: Any) -> Any:
    return await future


async def _wait_for(future: Any) -> Any:
    return await asyncio.wait([future])


@pytest.mark.parametrize("make", [lambda: CallFuture("a call"), AwaitableFuture])
@pytest.mark.parametrize("way", WAYS)
def test_a_forked_child_does_not_wait_for_its_parents_call(
    make: Callable[[], AwaitableFuture[int]], way: str
) -> None:
    pending, done = make(), make()
    assert re.match(
        "NotConnected: a call was pending .* forked", raised_in_a_fork(lambda: WAYS[way](pending))
    )
    done.set_result(1)
    assert raised_in_a_fork(lambda: WAYS[way](done)) == ""
    assert raised_in_a_fork(lambda: make().add_done_callback(print)) == ""  # one of its own


def test_a_forked_child_does_not_fetch_a_result_that_is_still_in_its_store() -> None:
    future: CallFuture[Any] = CallFuture("a call")
    future.is_passed_on = True
    future.set_result(StoredResult(Parcel(b"name", 1, []), Future().result, lambda *_: None))
    assert re.match("NotConnected: .* forked", raised_in_a_fork(future.result))


@pytest.mark.parametrize("make", [lambda: CallFuture("a call"), AwaitableFuture])
def test_a_call_with_a_deadline_is_awaited_as_any_other(make: Callable[[], Any]) -> None:
    future, stopped, cancelled = make(), make(), make()
    for each in (future, stopped, cancelled):
        each.limit_waits(40, time.monotonic() + 40)

    async def wait() -> None:
        tasks = [asyncio.create_task(_result_of(each)) for each in (future, stopped)]
        await asyncio.sleep(0)
        threading.Thread(target=future.set_result, args=[1]).start()
        assert await tasks[0] == 1
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        (cancelled.cancel_now if type(cancelled) is CallFuture else cancelled.cancel)()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(wait())


def test_a_wait_does_not_end_with_another_call() -> None:
    slow, quick = CallFuture[int]("slow"), CallFuture[int]("quick")
    got: list[int] = []
    threads = [threading.Thread(target=lambda f=f: got.append(f.result(40))) for f in (slow, quick)]
    for thread in threads:
        thread.start()
    quick.set_result(1)
    wait_until(lambda: got == [1], "the quick one's waiter")
    slow.set_result(2)
    for thread in threads:
        thread.join()
    assert got == [1, 2]


def test_a_timeout_names_the_call() -> None:
    with pytest.raises(CallTimeout, match=r"Actor-1\.sample has not answered after 0 s"):
        CallFuture("Actor-1.sample").result(timeout=0)


def test_a_call_without_a_receiver_cannot_be_cancelled() -> None:
    future: CallFuture[int] = CallFuture("a call")
    assert not future.cancel()
    assert future.running()
    future.set_result(1)
    assert (future.result(), future.running(), future.cancelled()) == (1, False, False)


def test_a_done_future_releases_its_actor_and_cannot_be_set_again() -> None:
    value, error = (CallFuture[int]("a call", actor=object()) for _ in "ab")
    value.set_result(1)
    error.set_exception(LookupError())
    for future in (value, error):
        assert future.actor is None
        with pytest.raises(InvalidStateError):
            future.set_result(2)


@pytest.mark.parametrize("make", [lambda: CallFuture("a call"), AwaitableFuture])
def test_a_caught_error_keeps_nothing_until_the_collector_comes(
    make: Callable[[], "Future[Any]"],
) -> None:
    future = make()
    future.set_exception(LookupError())
    dropped = weakref.ref(future)
    gc.disable()
    try:
        with suppress(LookupError):
            future.result()
        del future
        assert dropped() is None
    finally:
        gc.enable()


def test_losing_a_call_that_has_an_outcome_changes_nothing() -> None:
    future = CallFuture[int]("a call")
    called: list[object] = []
    future.add_done_callback(called.append)
    future.run_callbacks()
    assert not called  # there is no outcome yet
    future.settle(7, None)
    future.run_callbacks()
    future.lose(KeyError())
    future.run_callbacks()
    assert future.result(0) == 7
    callbacks.users.finish(within_s=40)
    assert called == [future]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_done_callback_that_exits_ends_neither_its_thread_nor_the_other_callbacks(
    error: type[BaseException],
) -> None:
    def raise_it(_: object) -> None:
        raise error

    future: CallFuture[int] = CallFuture("a call")
    events: list[object] = []
    future.add_done_callback(raise_it)
    future.add_done_callback(events.append)

    def complete() -> None:
        future.set_result(1)
        events.append("the thread continues")

    thread = threading.Thread(target=complete)
    thread.start()
    thread.join()
    callbacks.users.finish(within_s=40)
    assert set(events) == {future, "the thread continues"}


def test_the_callbacks_of_users_run_in_order_of_completion_and_block_no_other_thread() -> None:
    futures = [CallFuture[int]("a call"), AwaitableFuture[int](), CallFuture[int]("a call")]
    seen: list[object] = []
    may_go_on, continued = threading.Event(), threading.Event()

    def wait(future: Any) -> None:
        may_go_on.wait(40)
        seen.append((future, threading.current_thread().name))

    for future in futures:
        future.add_done_callback(wait)
    futures[2].then(lambda _: continued.set())
    for future in reversed(futures):
        future.set_result(1)
    assert continued.is_set()  # the runtime does not wait for callbacks
    may_go_on.set()
    callbacks.users.finish(within_s=40)
    assert seen == [(future, "remotely-callbacks") for future in reversed(futures)]


def test_the_main_thread_has_the_callbacks_of_the_runtime_run_elsewhere(
    engine: TaskThread,
) -> None:
    ran_on: list[str] = []
    for future in (CallFuture[int]("a call"), AwaitableFuture[int]()):
        future.then(lambda _: ran_on.append(threading.current_thread().name))
        future.set_result(1)
        future.then(lambda _: ran_on.append(threading.current_thread().name))
    engine.finish(within_s=40)
    assert ran_on == ["remotely-an engine"] * 4
