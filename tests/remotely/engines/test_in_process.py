"""REMOTELY_LOCAL=1: the same script, in this process.  What it sees is what a cluster shows."""

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
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.api import connection
from remotely.engine import Engine
from remotely.engines.in_process import InProcess

# Checked by mypy: InProcess has every verb, with the types that handles rely on.
_: Engine = InProcess()


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


# --- the seam -------------------------------------------------------------------------------------


def test_local_has_every_verb_of_an_engine_with_its_arguments() -> None:
    verbs = [name for name in vars(Engine) if not name.startswith("_")]
    assert len(verbs) == 14
    for verb in verbs:
        ours, theirs = (inspect.signature(getattr(kind, verb)) for kind in (InProcess, Engine))
        assert list(ours.parameters) == list(theirs.parameters), verb


def test_the_script_is_on_the_local_engine() -> None:
    assert isinstance(connection.current(), InProcess)


def test_it_needs_no_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    remotely.shutdown()
    assert Counter().add() == 1
    assert isinstance(connection.current(), InProcess)


def test_an_address_is_of_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    remotely.shutdown()
    monkeypatch.setenv("REMOTELY_ADDRESS", "nowhere:1")
    remotely.connect("nowhere:2")
    assert Counter().add() == 1


def test_it_starts_no_thread_and_no_process() -> None:
    threads = threading.active_count()
    assert Counter().where() == (os.getpid(), threading.get_ident())
    assert threading.active_count() == threads


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_runs_here_and_gives_its_value() -> None:
    counter = Counter(5)
    assert counter.add(2) == 7
    assert counter.add(n=3) == 10


def test_a_submitted_call_gives_a_future_that_is_done() -> None:
    counter = Counter()
    future = counter.add.submit(3)
    assert future.done()
    assert future.result(timeout=0) == 3
    assert remotely.submit(counter.add, 4).result() == 7


def test_a_future_may_be_awaited() -> None:
    counter = Counter()

    async def gathered() -> list[int]:
        return [*(await asyncio.gather(counter.add.submit(1), counter.add.submit(2)))]

    assert asyncio.run(gathered()) == [1, 3]


def test_futures_come_as_they_complete() -> None:
    futures = [Counter(n).add.submit() for n in range(3)]
    assert sorted(f.result() for f in remotely.as_completed(futures)) == [1, 2, 3]


def test_a_class_that_does_not_wait_returns_futures() -> None:
    counter = remotely.options(Counter, wait=False)()
    future: Any = counter.add(3)
    assert future.result() == 3


def test_an_async_method_runs_to_its_end() -> None:
    counter: Any = Counter(1)
    assert counter.add_slowly(2) == 3
    assert counter.add_slowly.submit(2).result() == 5


def test_an_async_method_may_be_called_from_async_code() -> None:
    async def main() -> int:
        counter = Counter(1)
        total: int = await counter.add_slowly.submit(2)
        return total

    assert asyncio.run(main()) == 3


# --- errors ---------------------------------------------------------------------------------------


def test_what_a_method_raises_is_raised_and_the_object_lives_on() -> None:
    counter = Counter()
    with pytest.raises(KeyError, match="reason"):
        counter.fail("reason")
    assert counter.add() == 1


def test_what_a_submitted_method_raises_is_in_its_future() -> None:
    future = Counter().fail.submit("reason")
    assert isinstance(future.exception(), KeyError)
    with pytest.raises(KeyError):
        future.result()
    assert isinstance(remotely.submit(Counter().fail, "x").exception(), KeyError)


def test_what_a_constructor_raises_is_raised_and_leaves_nothing() -> None:
    with pytest.raises(ValueError, match="from zero up"):
        remotely.options(Counter, name="wrong")(-1)
    with pytest.raises(NameError):
        remotely.get_actor("wrong")


def test_a_call_that_is_spelt_wrong_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="ad"):
        Counter().ad(1)


# --- attributes -----------------------------------------------------------------------------------


def test_attributes_are_read_and_written() -> None:
    counter = Counter(2)
    counter.count += 3
    counter.fresh = "new"
    assert (counter.count, counter.fresh, counter.double, counter.unit) == (5, "new", 10, "apples")


def test_an_attribute_that_is_not_there_is_an_attribute_error() -> None:
    assert not hasattr(Counter(), "missing")
    assert getattr(Counter(), "missing", 7) == 7


# --- values ---------------------------------------------------------------------------------------


def test_a_put_value_arrives_as_the_value() -> None:
    array = np.arange(10)
    assert Counter().same(remotely.put(array)).tolist() == list(range(10))


def test_a_handle_may_be_passed_and_called_over_there() -> None:
    first, second = Counter(1), Counter(2)
    assert first.add_to(second, 5) == 7
    assert second.count == 7
    assert first.same(second) == second


def test_an_object_may_make_others() -> None:
    made = Counter().make()
    assert made.add() == 101
    assert isinstance(made, Counter)


def test_a_handle_that_is_pickled_or_copied_is_one_of_the_same_object() -> None:
    counter = Counter(1)
    for other in (pickle.loads(pickle.dumps(counter)), copy.copy(counter), copy.deepcopy(counter)):
        assert other == counter
        assert other.add() == counter.count


# --- groups ---------------------------------------------------------------------------------------


def test_a_group_is_called_as_one() -> None:
    group = remotely.group(Counter, 3, 10)
    assert group.add(1) == [11, 11, 11]
    assert [future.result() for future in group.add.submit(1)] == [12, 12, 12]
    group.count = 0
    group[1].add(5)
    assert group.count == [0, 5, 0]
    assert len(group[1:]) == 2
    assert [counter.count for counter in group] == [0, 5, 0]


def test_a_group_in_which_one_fails_raises_its_error_after_all_have_run() -> None:
    group = remotely.Group([Counter(1), Counter(2)])
    with pytest.raises(KeyError):
        group.fail("reason")
    assert group.add() == [2, 3]


# --- names ----------------------------------------------------------------------------------------


def test_an_object_is_found_by_its_name() -> None:
    kept = remotely.options(Counter, name="evaluator")(4)
    found = remotely.get_actor("evaluator")
    assert found == kept
    assert found.add() == 5
    assert isinstance(found, Counter)


def test_a_name_is_taken_once_and_free_again_after_the_end() -> None:
    kept = remotely.options(Counter, name="one")()
    with pytest.raises(remotely.NameTaken, match="'one'"):
        remotely.options(Counter, name="one")()
    remotely.close(kept)
    assert remotely.options(Counter, name="one")(7).count == 7


def test_a_group_cannot_have_one_name() -> None:
    with pytest.raises(remotely.NameTaken):
        remotely.group(remotely.options(Counter, name="one"), 2)
    with pytest.raises(NameError):
        remotely.get_actor("one")


def test_an_unknown_name_is_a_name_error() -> None:
    with pytest.raises(NameError, match="'nobody'"):
        remotely.get_actor("nobody")


def test_objects_without_a_name_get_one_of_their_own() -> None:
    first, second = Counter(), Counter()
    names = {repr(first), repr(second)}
    remotely.close(first)
    third = Counter()
    assert len(names | {repr(third)}) == 3
    assert second.add() == 1


# --- the end --------------------------------------------------------------------------------------


def test_close_calls_the_users_close_once() -> None:
    counter = Counter(name="closed once")
    remotely.close(counter)
    remotely.close(counter)
    assert closed.count("closed once") == 1


def test_a_call_after_the_end_raises_as_on_a_cluster() -> None:
    counter = Counter()
    remotely.close(counter)
    with pytest.raises(remotely.ActorDied, match="closed") as died:
        counter.add()
    assert died.value.may_have_run is False
    with pytest.raises(remotely.ActorDied):
        _ = counter.count
    assert isinstance(counter.add.submit().exception(), remotely.ActorDied)


def test_leaving_a_with_block_ends_it() -> None:
    with Counter(name="with block") as counter:
        assert counter.add() == 1
    assert "with block" in closed
    with remotely.group(Counter, 2, name="group block") as group:
        assert group.add() == [1, 1]
    assert closed.count("group block") == 2


def test_when_the_last_handle_is_gone_it_ends() -> None:
    counter = Counter(name="forgotten")
    other = remotely.get_actor(repr(counter).split("'")[1])
    del counter
    gc.collect()
    assert "forgotten" not in closed
    assert other.add() == 1
    del other
    gc.collect()
    assert "forgotten" in closed


def test_a_detached_one_lives_until_it_is_closed() -> None:
    remotely.options(Counter, name="store", detached=True)(name="detached")
    gc.collect()
    assert remotely.get_actor("store").add() == 1
    remotely.close(remotely.get_actor("store"))
    assert "detached" in closed


def test_shutdown_ends_all_that_is_left() -> None:
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


def test_a_close_that_raises_does_so_at_who_closes() -> None:
    with pytest.raises(OSError, match="the file is gone"):
        remotely.close(FailsToClose())


def test_a_close_that_raises_when_nobody_asked_is_printed_and_harms_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    forgotten = FailsToClose()
    del forgotten
    gc.collect()
    assert "OSError: the file is gone" in capsys.readouterr().err
    first, second = FailsToClose(), Counter(name="after one that fails")
    remotely.shutdown()
    assert "OSError: the file is gone" in capsys.readouterr().err
    assert "after one that fails" in closed
    del first, second


def test_an_async_close_runs_to_its_end() -> None:
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


def test_nothing_of_the_objects_is_kept_by_the_engine() -> None:
    counter = Counter()
    (plain,) = [each for each in gc.get_objects() if type(each) is Counter]
    references = sys.getrefcount(plain)
    counter.add()
    with pytest.raises(KeyError):
        counter.fail("x")
    gc.collect()
    assert sys.getrefcount(plain) == references


def test_a_class_that_is_defined_again_is_not_kept() -> None:
    def redefine() -> "weakref.ref[type]":
        @remotely.remote_class
        class Cell:
            def method(self) -> int:
                return 1

        assert Cell().method() == 1
        return weakref.ref(Cell)

    cells = [redefine() for _ in range(3)]
    for _ in range(2):  # the kinds of handles go first
        gc.collect()
    assert [cell() for cell in cells] == [None] * 3


def test_futures_and_references_within_arguments_arrive_as_their_values() -> None:
    @remotely.remote_class
    class Echo:
        def echo(self, value: Any) -> Any:
            return value

    echo = Echo()
    future = echo.echo.submit(3)
    assert echo.echo([future, (1, remotely.ref(future))]) == [3, (1, 3)]
    assert echo.echo(value={"a": [future], "b": 2}) == {"a": [3], "b": 2}
    circle: list[Any] = [[1]]
    circle.append(circle)
    assert echo.echo(circle) is circle
