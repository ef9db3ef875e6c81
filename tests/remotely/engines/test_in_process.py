"""REMOTELY_LOCAL=1: a script has the same results in this process as on a cluster."""

import asyncio
import copy
import gc
import inspect
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.api import connection
from remotely.calling.actor import CalledActor
from remotely.calling.carrier import Carrier
from remotely.calling.engine import CallEngine
from remotely.engine import Engine
from remotely.engines.in_process import InProcess

# Checked by mypy: each has every method of its interface, with its types.
_: Engine = CallEngine(InProcess())
__: Carrier[CalledActor] = InProcess()


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    remotely.connect()
    yield
    remotely.shutdown()


closed: list[str] = []


@remotely.remote_class
class Counter:
    unit = "apples"

    def __init__(self, start: int = 0, name: str = "a counter") -> None:
        if start < 0:
            raise ValueError("it counts from zero up")
        self.count = start
        self.label = name

    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    async def add_slowly(self, n: int) -> int:
        await asyncio.sleep(0)
        return self.add(n)

    def fail(self, how: str) -> None:
        raise KeyError(how)

    def where(self) -> tuple[int, int]:
        return os.getpid(), threading.get_ident()

    def same(self, value: Any) -> Any:
        return value

    def add_to(self, other: "Counter", n: int) -> int:
        return other.add(n)

    def make(self) -> "Counter":
        return Counter(100)

    @property
    def double(self) -> int:
        return 2 * self.count

    def close(self) -> None:
        closed.append(self.label)


# --- the engine -----------------------------------------------------------------------------------


def test_it_has_every_method_of_engine_with_its_parameters() -> None:
    names = [name for name in vars(Engine) if not name.startswith("_")]
    assert len(names) == 16
    for name in names:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (CallEngine, Engine))
        assert list(ours.parameters) == list(theirs.parameters), name


def test_it_needs_no_connect_and_ignores_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    remotely.shutdown()
    assert Counter().add() == 1
    engine = connection.current()
    assert isinstance(engine, CallEngine)
    assert isinstance(engine.carrier, InProcess)
    remotely.shutdown()
    monkeypatch.setenv("REMOTELY_ADDRESS", "nowhere:1")
    remotely.connect("nowhere:2")
    assert Counter().add() == 1


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_runs_in_this_thread() -> None:
    threads = threading.active_count()
    counter = Counter(5)
    assert counter.where() == (os.getpid(), threading.get_ident())
    assert threading.active_count() == threads
    assert counter.add(2) == 7
    assert counter.add(n=3) == 10


def test_a_submitted_call_returns_a_completed_future() -> None:
    counter = Counter()
    future = counter.add.submit(3)
    assert future.done()
    assert future.result(timeout=0) == 3
    assert list(remotely.as_completed([future])) == [future]
    assert remotely.submit(counter.add, 4).result() == 7
    without_wait: Any = remotely.options(Counter, wait=False)()
    assert without_wait.add(3).result() == 3


def test_an_async_method_runs_to_completion() -> None:
    counter: Any = Counter(1)
    assert counter.add_slowly(2) == 3
    assert counter.add_slowly.submit(2).result() == 5


def test_async_code_can_await_futures() -> None:
    counter = Counter(1)

    async def main() -> list[int]:
        return [await counter.add.submit(2), await counter.add_slowly.submit(3)]

    assert asyncio.run(main()) == [3, 6]


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_of_a_method_is_raised_or_in_its_future() -> None:
    counter = Counter()
    with pytest.raises(KeyError, match="reason"):
        counter.fail("reason")
    future = counter.fail.submit("reason")
    assert isinstance(future.exception(), KeyError)
    with pytest.raises(KeyError):
        future.result()
    assert isinstance(remotely.submit(counter.fail, "x").exception(), KeyError)
    assert counter.add() == 1


def test_an_error_of_a_constructor_is_raised_and_leaves_no_actor() -> None:
    with pytest.raises(ValueError, match="from zero up"):
        remotely.options(Counter, name="wrong")(-1)
    with pytest.raises(NameError):
        remotely.get_actor("wrong")


# --- attributes -----------------------------------------------------------------------------------


def test_attributes_are_read_and_written() -> None:
    counter = Counter(2)
    counter.count += 3
    counter.fresh = "new"
    assert (counter.count, counter.fresh, counter.double, counter.unit) == (5, "new", 10, "apples")
    assert getattr(counter, "missing", 7) == 7
    with pytest.raises(AttributeError, match="ad"):
        counter.ad(1)


# --- values ---------------------------------------------------------------------------------------


def test_puts_futures_and_references_arrive_as_their_values() -> None:
    counter = Counter()
    assert counter.same(remotely.put(np.arange(10))).tolist() == list(range(10))
    future = counter.same.submit(3)
    assert counter.same([future, (1, remotely.ref(future))]) == [3, (1, 3)]
    assert counter.same(value={"a": [future], "b": 2}) == {"a": [3], "b": 2}
    circle: list[Any] = [[1]]
    circle.append(circle)
    assert counter.same(circle) is circle


def test_handles_can_be_passed_and_returned() -> None:
    first, second = Counter(1), Counter(2)
    assert first.add_to(second, 5) == 7
    assert second.count == 7
    assert first.same(second) == second
    created = first.make()
    assert created.add() == 101
    assert isinstance(created, Counter)


def test_a_pickled_or_copied_handle_refers_to_the_same_object() -> None:
    counter = Counter(1)
    for other in (pickle.loads(pickle.dumps(counter)), copy.copy(counter), copy.deepcopy(counter)):
        assert other == counter
        assert other.add() == counter.count


# --- groups ---------------------------------------------------------------------------------------


def test_a_group_calls_all_its_members() -> None:
    group = remotely.group(Counter, 3, 10)
    assert group.add(1) == [11, 11, 11]
    assert [future.result() for future in group.add.submit(1)] == [12, 12, 12]
    group.count = 0
    group[1].add(5)
    assert group.count == [0, 5, 0]
    assert len(group[1:]) == 2
    assert [counter.count for counter in group] == [0, 5, 0]
    with pytest.raises(KeyError):
        group.fail("reason")
    assert group.add() == [1, 6, 1]


# --- names ----------------------------------------------------------------------------------------


def test_an_actor_is_found_by_its_name_which_is_unique_until_it_ends() -> None:
    kept = remotely.options(Counter, name="one")(4)
    found = remotely.get_actor("one")
    assert found == kept
    assert found.add() == 5
    assert isinstance(found, Counter)
    with pytest.raises(remotely.NameTaken, match="'one'"):
        remotely.options(Counter, name="one")()
    remotely.close(kept)
    with pytest.raises(NameError, match="'one'"):
        remotely.get_actor("one")
    assert remotely.options(Counter, name="one")(7).count == 7


def test_a_group_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="for one actor"):
        remotely.group(remotely.options(Counter, name="one"), 2)
    with pytest.raises(NameError):
        remotely.get_actor("one")


def test_actors_without_a_name_get_unique_names() -> None:
    first, second = Counter(), Counter()
    names = {repr(first), repr(second)}
    remotely.close(first)
    third = Counter()
    assert len(names | {repr(third)}) == 3
    assert second.add() == 1


# --- the end --------------------------------------------------------------------------------------


@remotely.remote_class
class Third:
    """Of three, the last cannot be made."""

    made = 0

    def __init__(self) -> None:
        Third.made += 1
        self.number = Third.made
        if self.number == 3:
            raise ValueError("no third")

    def close(self) -> None:
        closed.append(f"number {self.number}")


def test_a_group_that_cannot_be_made_closes_those_that_were() -> None:
    closed.clear()
    with pytest.raises(ValueError, match="no third"):
        remotely.group(Third, 3)
    assert sorted(closed) == ["number 1", "number 2"]


@remotely.remote_class
class Stubborn:
    def close(self) -> None:
        raise KeyboardInterrupt


def test_a_name_is_free_even_if_its_close_was_interrupted() -> None:
    actor = remotely.options(Stubborn, name="stubborn")()
    with pytest.raises(KeyboardInterrupt):
        remotely.close(actor)
    with pytest.raises(NameError, match="'stubborn'"):
        remotely.get_actor("stubborn")


@remotely.remote_class
class Patient:
    @remotely.idempotent(retries=2)
    def seven(self) -> int:
        return 7


def test_methods_that_may_be_retried_run() -> None:
    actors: Any = remotely.group(Patient, 2)
    assert actors.seven() == [7, 7]
    assert remotely.submit(actors[0].seven).result() == 7


def test_close_calls_the_users_close_once() -> None:
    counter = Counter(name="closed once")
    remotely.close(counter)
    remotely.close(counter)
    assert closed.count("closed once") == 1


def test_a_call_to_a_closed_actor_raises() -> None:
    counter = Counter()
    remotely.close(counter)
    with pytest.raises(remotely.ActorDied, match="closed") as died:
        counter.add()
    assert died.value.may_have_run is False
    with pytest.raises(remotely.ActorDied):
        _ = counter.count
    assert isinstance(counter.add.submit().exception(), remotely.ActorDied)


def test_leaving_a_with_block_closes_it() -> None:
    with Counter(name="with block") as counter:
        assert counter.add() == 1
    assert "with block" in closed
    with remotely.group(Counter, 2, name="group block") as group:
        assert group.add() == [1, 1]
    assert closed.count("group block") == 2


def test_an_actor_ends_with_its_last_handle() -> None:
    counter = Counter(name="forgotten")
    other = remotely.get_actor(repr(counter).split("'")[1])
    del counter
    gc.collect()
    assert "forgotten" not in closed
    assert other.add() == 1
    del other
    gc.collect()
    assert "forgotten" in closed


def test_a_detached_actor_lives_until_it_is_closed() -> None:
    remotely.options(Counter, name="store", detached=True)(name="detached")
    gc.collect()
    assert remotely.get_actor("store").add() == 1
    remotely.close(remotely.get_actor("store"))
    assert "detached" in closed


def test_shutdown_ends_all_actors() -> None:
    remotely.options(Counter, name="store", detached=True)(name="at shutdown 1")
    kept = Counter(name="at shutdown 2")
    remotely.shutdown()
    assert {"at shutdown 1", "at shutdown 2"} <= set(closed)
    with pytest.raises(remotely.ActorDied):
        kept.add()


@remotely.remote_class
class FailsToClose:
    def close(self) -> None:
        raise OSError("the file is gone")


def test_an_error_of_close_is_raised_if_the_user_closes_and_otherwise_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(OSError, match="the file is gone"):
        remotely.close(FailsToClose())
    assert capsys.readouterr().err == ""
    forgotten = FailsToClose()
    del forgotten
    gc.collect()
    assert "OSError: the file is gone" in capsys.readouterr().err
    first, second = FailsToClose(), Counter(name="after one that fails")
    remotely.shutdown()
    assert "OSError: the file is gone" in capsys.readouterr().err
    assert "after one that fails" in closed
    del first, second


def test_an_async_close_runs_to_completion() -> None:
    ended: list[str] = []

    @remotely.remote_class
    class Closes:
        async def close(self) -> None:
            await asyncio.sleep(0)
            ended.append("closed")

    remotely.close(Closes())
    assert ended == ["closed"]


def test_the_script_may_connect_again() -> None:
    remotely.shutdown()
    remotely.connect()
    with pytest.raises(remotely.RemotelyError, match="connected already"):
        remotely.connect()
    assert Counter().add() == 1


def test_after_shutdown_other_threads_that_ran_then_connect_only_explicitly() -> None:
    with ThreadPoolExecutor(1) as other:
        assert other.submit(Counter).result().add() == 1
        remotely.shutdown()
        with pytest.raises(remotely.NotConnected, match=r"another thread .* remotely.connect\(\)"):
            other.submit(Counter).result()
        assert Counter().add() == 1, "this thread has called it"
        assert other.submit(Counter).result().add() == 1
        remotely.shutdown()
        other.submit(remotely.connect).result()
        assert other.submit(Counter).result().add() == 1


def test_a_thread_that_begins_after_a_shutdown_connects_at_its_first_use() -> None:
    """Such as those of a training that begins then."""
    remotely.shutdown()
    with ThreadPoolExecutor(1) as later:
        assert later.submit(Counter).result().add() == 1


def test_the_engine_keeps_no_references_after_a_call() -> None:
    counter = Counter()
    (plain,) = [each for each in gc.get_objects() if type(each) is Counter]
    references = sys.getrefcount(plain)
    counter.add()
    with pytest.raises(KeyError):
        counter.fail("x")
    gc.collect()
    assert sys.getrefcount(plain) == references


def test_a_redefined_class_is_not_kept() -> None:
    def redefine() -> "weakref.ref[type]":
        @remotely.remote_class
        class Cell:
            def method(self) -> int:
                return 1

        assert Cell().method() == 1
        return weakref.ref(Cell)

    cells = [redefine() for _ in range(3)]
    for _ in range(2):  # the first frees the handle classes
        gc.collect()
    assert [cell() for cell in cells] == [None] * 3
