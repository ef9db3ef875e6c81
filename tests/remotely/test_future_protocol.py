"""The protocol of `concurrent.futures` and asyncio, on every kind of future.

No test asks a future for its result before the condition under test: futures complete without it.
"""

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import remotely
from tests.clusters import Here, Traces, wait_until
from tests.every_way_to_wait import run_in

WAIT_S = 40.0


class Mine(Exception):
    """The exception that methods raise."""


@remotely.remote_class(cpus=0)
class Actor:
    """Each kind of method waits for a file to exist, then returns or raises the value."""

    def plain(self, value: Any, gate: str = "") -> Any:
        if gate:
            Path(f"{gate}-begun").touch()
        while gate and not Path(gate).exists():
            time.sleep(0.001)
        if isinstance(value, Exception):
            raise value
        return value

    @remotely.idempotent(retries=2)
    def idempotent(self, value: Any, gate: str = "") -> Any:
        return self.plain(value, gate)

    @remotely.batched
    def batched(self, values: list[Any], gates: list[str]) -> list[Any]:
        return [self.plain(value, gate) for value, gate in zip(values, gates, strict=True)]

    def stream(self, value: Any, gate: str = "") -> Iterator[Any]:
        yield self.plain(value, gate)


def item(actor: Any, value: Any, gate: str) -> Any:
    """Return the future of the first item of a stream."""
    stream = actor.stream(value, gate)
    future: Any = stream._ask()
    future.stream = stream
    return future


SUBMIT: dict[str, Callable[[Any, Any, str], Any]] = {
    "plain": lambda actor, value, gate: actor.plain.submit(value, gate),
    "idempotent": lambda actor, value, gate: actor.idempotent.submit(value, gate),
    "batched": lambda actor, value, gate: actor.batched.submit(value, gate),
    "item": item,
    "group": lambda actor, value, gate: remotely.Group([actor]).plain.submit(value, gate)[0],
    "in-process": lambda actor, value, gate: actor.plain.submit(value, gate),
}


class Kind(NamedTuple):
    """Makes futures of one kind, each with its own actor; `gate` holds back the blocked one."""

    name: str
    actors: list[Any]
    gate: Path

    def quick(self, value: Any = 1) -> Future[Any]:
        future: Future[Any] = SUBMIT[self.name](self.actors[0], value, "")
        return future

    def blocked(self, value: Any = 2) -> Future[Any]:
        """Return a future that is done once `open` is called; skip in-process."""
        if self.name == "in-process":
            pytest.skip("done as soon as it is made")
        future: Future[Any] = SUBMIT[self.name](self.actors[1], value, str(self.gate))
        return future

    def open(self) -> None:
        self.gate.touch()


@pytest.fixture(scope="module", params=SUBMIT)
def actors(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Any]]]:
    """Return a kind of future and two actors for all its tests."""
    here: Here = request.getfixturevalue("started_here")
    before = Traces()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "in-process":
            patch.setenv("REMOTELY_LOCAL", "1")
        else:
            remotely.connect(here.address, key=here.key)
        yield request.param, [Actor(), Actor()]
    remotely.shutdown()
    wait_until(lambda: not Traces().left_since(before), f"gone: {Traces().left_since(before)}")


@pytest.fixture
def kind(actors: tuple[str, list[Any]], tmp_path: Path) -> Iterator[Kind]:
    kind = Kind(*actors, tmp_path / "gate")
    yield kind
    kind.open()  # or a failed test would block the actor for the next


def test_polling_done_sees_the_end(kind: Kind) -> None:
    future = kind.quick()
    wait_until(future.done, "it is done without a waiter")
    assert (future.result(0), future.exception(0)) == (1, None)
    assert (future.running(), future.cancelled()) == (False, False)


def test_running_is_true_while_the_call_runs(kind: Kind) -> None:
    future = kind.blocked()
    assert (future.done(), future.running(), future.cancelled()) == (False, True, False)
    kind.open()
    assert future.result(WAIT_S) == 2


def test_as_completed_yields_each_when_it_is_done(kind: Kind) -> None:
    blocked, quick = kind.blocked(), kind.quick()
    coming = concurrent.futures.as_completed([blocked, quick], WAIT_S)
    assert next(coming) is quick
    kind.open()
    assert next(coming) is blocked
    assert not list(coming)


def test_remotely_as_completed_does_the_same(kind: Kind) -> None:
    futures = [kind.quick(number) for number in range(20)]
    done = remotely.as_completed(futures, timeout=WAIT_S)
    assert sorted(future.result() for future in done) == list(range(20))


def test_as_completed_ends_at_its_timeout(kind: Kind) -> None:
    with pytest.raises(concurrent.futures.TimeoutError):
        list(remotely.as_completed([kind.blocked()], timeout=0.01))


def test_wait_for_all(kind: Kind) -> None:
    futures = [kind.quick(number) for number in range(20)]
    done, pending = concurrent.futures.wait(futures, WAIT_S, ALL_COMPLETED)
    assert (done, pending) == (set(futures), set())


def test_wait_for_the_first(kind: Kind) -> None:
    blocked, quick = kind.blocked(), kind.quick()
    done, pending = concurrent.futures.wait([blocked, quick], WAIT_S, FIRST_COMPLETED)
    assert (done, pending) == ({quick}, {blocked})


def test_wait_for_the_first_error(kind: Kind) -> None:
    blocked, raising = kind.blocked(), kind.quick(Mine("x"))
    done, pending = concurrent.futures.wait([blocked, raising], WAIT_S, FIRST_EXCEPTION)
    assert (done, pending) == ({raising}, {blocked})
    assert isinstance(raising.exception(), Mine)  # else the unretrieved error is logged


def test_wait_returns_at_its_timeout(kind: Kind) -> None:
    blocked = kind.blocked()
    assert concurrent.futures.wait([blocked], 0.01) == (set(), {blocked})


def test_a_callback_is_called_once_whenever_it_was_added(kind: Kind) -> None:
    future = kind.quick()
    called: list[Future[Any]] = []
    future.add_done_callback(called.append)
    wait_until(lambda: called, "called without a waiter")
    future.add_done_callback(called.append)
    assert called == [future, future]


def test_result_raises_the_error_and_exception_returns_it(kind: Kind) -> None:
    future = kind.quick(Mine("x"))
    assert isinstance(future.exception(WAIT_S), Mine)
    for _ in range(2):
        with pytest.raises(Mine, match="x"):
            future.result(WAIT_S)


def test_result_and_exception_time_out(kind: Kind) -> None:
    future = kind.blocked()
    for ask in (future.result, future.exception):
        with pytest.raises(remotely.CallTimeout, match="still runs"):
            ask(0.01)
        with pytest.raises(concurrent.futures.TimeoutError):
            ask(0)
    kind.open()
    assert future.result(WAIT_S) == 2


def test_futures_can_be_awaited_and_gathered(kind: Kind) -> None:
    async def main() -> list[Any]:
        one: Any = kind.quick(1)
        return [
            await one,
            *await asyncio.gather(kind.quick(2), asyncio.wrap_future(kind.quick(3))),  # type: ignore[call-overload]
            *await asyncio.gather(kind.quick(Mine("x")), return_exceptions=True),  # type: ignore[call-overload]
        ]

    *values, error = asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert values == [1, 2, 3]
    assert isinstance(error, Mine)


def test_awaiting_a_slow_call_does_not_block_the_event_loop(kind: Kind) -> None:
    async def main() -> Any:
        blocked: Any = kind.blocked()
        waiting = asyncio.ensure_future(blocked)
        await asyncio.sleep(0)
        kind.open()
        return await waiting

    assert asyncio.run(asyncio.wait_for(main(), WAIT_S)) == 2


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_every_function_of_asyncio_waits_for_it(kind: Kind, loop: str) -> None:
    running = kind.blocked()
    wait_until(Path(f"{kind.gate}-begun").exists, "it runs")
    run_in(loop, kind.quick, running)
    kind.open()
    assert running.result(WAIT_S) == 2


def test_a_callback_with_a_context_runs_in_the_event_loop(kind: Kind) -> None:
    async def main() -> None:
        called: asyncio.Future[Any] = asyncio.Future()  # whose methods are not thread-safe
        future: Any = kind.blocked()
        future.add_done_callback(called.set_result, context=contextvars.copy_context())
        kind.open()
        assert await called is future

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


def test_another_callback_runs_while_the_event_loop_is_blocked(kind: Kind) -> None:
    async def cell() -> None:  # as of a notebook
        called = threading.Event()
        kind.quick().add_done_callback(lambda _: called.set())
        assert called.wait(WAIT_S)

    asyncio.run(cell())


def test_a_removed_callback_is_not_called(kind: Kind) -> None:
    async def main() -> int:
        future: Any = kind.blocked()
        asyncio.get_running_loop().call_soon(future.add_done_callback, _fail)
        await asyncio.sleep(0)
        return int(future.remove_done_callback(_fail))

    assert asyncio.run(main()) == 1


def _fail(_: object) -> None:
    raise AssertionError("called")


def test_two_threads_may_wait_for_one_future(kind: Kind) -> None:
    future = kind.blocked()
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(future.result(WAIT_S))) for _ in "ab"]
    for thread in threads:
        thread.start()
    kind.open()
    assert future.result(WAIT_S) == 2
    for thread in threads:
        thread.join()
    assert got == [2, 2]


def test_a_done_future_cannot_be_cancelled(kind: Kind) -> None:
    future = kind.quick()
    assert future.result(WAIT_S) == 1
    assert (future.cancel(), future.cancelled()) == (False, False)


def test_a_running_call_cannot_be_cancelled(kind: Kind) -> None:
    future = kind.blocked()
    wait_until(Path(f"{kind.gate}-begun").exists, "it runs")
    assert not future.cancel()
    kind.open()
    assert future.result(WAIT_S) == 2
