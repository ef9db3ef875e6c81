"""Ownership of values: a change after a call or a return does not change the value that was sent.

The matrix: each path that a value may take, in each setting, in sizes on both sides of every
threshold.  Each path sends values, changes them at once, and returns what arrived.
"""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import remotely
from tests.clusters import wait_until

# In a message, beside it, through memory, and through the stores of two machines.
SIZES = (100, 9_000, 20_000, 600_000)
CHANGES = 12  # of one buffer that is returned again and again

AS_HANDED_OVER = [((1,), True), ((1,), True), ((1,), True)]


def new_values(size: int) -> list[Any]:
    """Return values that are all ones: an array, a read-only view, and a bytearray."""
    frozen = np.ones(size, np.uint8)[:]
    frozen.flags.writeable = False
    return [np.ones(size, np.uint8), frozen, bytearray(b"\1" * size)]


def change(values: list[Any]) -> None:
    values[0][:] = 2
    values[1].base[:] = 2
    values[2][:] = b"\2" * len(values[2])


def look(*values: Any) -> list[tuple[tuple[int, ...], bool]]:
    """Return the set of bytes of each value, and whether it is writable."""
    views = [memoryview(value) for value in values]
    return [(tuple(sorted(set(view.cast("B")))), not view.readonly) for view in views]


@remotely.remote_class(cpus=0)
class Keeper:
    """An actor that inspects its arguments, and returns the same buffer repeatedly."""

    def __init__(self, *values: Any) -> None:
        self.values = values
        self.buffer: Any = None

    def look(self, *values: Any, beside: Any = None) -> Any:
        return look(*values)

    def kept(self, _: int = 0) -> Any:
        return look(*self.values)

    def hold(self, file: Path) -> None:
        wait_until(file.exists, "it may go on")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    @remotely.idempotent(retries=2)
    def die_at_first(self, folder: Path, *values: Any) -> Any:
        if not (folder / "died").exists():
            (folder / "died").touch()
            self.die()
        return look(*values)

    @remotely.batched
    def look_batched(self, *values: Any) -> Any:
        return [look(*each) for each in zip(*values, strict=True)]

    def look_again_and_again(self, *values: Any) -> Iterator[Any]:
        while True:
            yield look(*values)

    def echo(self, value: Any) -> Any:
        return value

    def filled(self, size: int, number: int) -> Any:
        if self.buffer is None or len(self.buffer) != size:
            self.buffer = np.empty(size, np.uint8)
        self.buffer[:] = number
        return self.buffer

    def stream(self, size: int) -> Iterator[Any]:
        for number in range(CHANGES):
            yield self.filled(size, number)


@remotely.remote_class(cpus=0)
class AsyncKeeper(Keeper):
    async def filled_async(self, size: int, number: int) -> Any:
        return self.filled(size, number)

    async def stream_async(self, size: int) -> Any:
        for number in range(CHANGES):
            yield self.filled(size, number)


@remotely.remote_class(cpus=0, concurrency=2)
class ConcurrentKeeper(Keeper):
    def __init__(self) -> None:
        super().__init__()
        self.own = threading.local()  # the next call of a thread changes what the thread returned

    def filled(self, size: int, number: int) -> Any:
        if len(getattr(self.own, "buffer", ())) != size:
            self.own.buffer = np.empty(size, np.uint8)
        self.own.buffer[:] = number
        return self.own.buffer


Restarted = remotely.options(Keeper, max_restarts=len(SIZES))


# --- what is handed over --------------------------------------------------------------------------

# Each path makes its actors once, for the values of all sizes.


class Round(NamedTuple):
    """Values of one size, and a folder for what goes on meanwhile."""

    values: list[Any]
    folder: Path

    def go(self) -> None:
        """Change the values, then let a call that holds up the path end."""
        change(self.values)
        (self.folder / "go").touch()


def by_a_call(rounds: Iterator[Round]) -> Iterator[Any]:
    keeper = Keeper()
    for values, _ in rounds:
        yield keeper.look(*values)


def by_submit(rounds: Iterator[Round]) -> Iterator[Any]:
    keeper = Keeper()
    for each in rounds:
        keeper.hold.submit(each.folder / "go")
        future = keeper.look.submit(*each.values)
        each.go()
        yield future.result()


def by_a_call_of_a_group(rounds: Iterator[Round]) -> Iterator[Any]:
    keepers = remotely.group(Keeper, 2)
    for values, _ in rounds:
        futures = keepers.look.submit(*values)
        change(values)
        one, other = (future.result() for future in futures)
        assert one == other
        yield one


def by_a_batched_call(rounds: Iterator[Round]) -> Iterator[Any]:
    keeper = Keeper()
    for values, _ in rounds:
        future = keeper.look_batched.submit(*values)
        change(values)
        yield future.result()


def beside_a_future(rounds: Iterator[Round]) -> Iterator[Any]:
    keeper, gate = Keeper(), Keeper()
    for each in rounds:
        future = keeper.look.submit(*each.values, beside=gate.hold.submit(each.folder / "go"))
        each.go()
        yield future.result()


def behind_a_call_that_waits_for_a_future(rounds: Iterator[Round]) -> Iterator[Any]:
    keeper, gate = Keeper(), Keeper()
    for each in rounds:
        keeper.look.submit(beside=gate.hold.submit(each.folder / "go"))
        future = keeper.look.submit(*each.values)
        each.go()
        yield future.result()


def by_a_stream(rounds: Iterator[Round]) -> Iterator[Any]:
    keeper = Keeper()
    for values, _ in rounds:
        stream = keeper.look_again_and_again(*values)
        change(values)
        yield next(stream)
        stream.close()


def by_a_constructor(rounds: Iterator[Round]) -> Iterator[Any]:
    for values, _ in rounds:
        keeper = Keeper(*values)
        change(values)
        yield keeper.kept()


def by_the_constructor_of_a_second_life(rounds: Iterator[Round]) -> Iterator[Any]:
    for values, _ in rounds:
        keeper = Restarted(*values)
        change(values)
        with pytest.raises(remotely.ActorDied):
            keeper.die()
        yield keeper.kept()


def by_a_retry(rounds: Iterator[Round]) -> Iterator[Any]:
    keeper = Restarted()
    for values, folder in rounds:
        future = keeper.die_at_first.submit(folder, *values)
        change(values)
        yield future.result()


def by_put(rounds: Iterator[Round]) -> Iterator[Any]:
    keeper = Keeper()
    for values, _ in rounds:
        refs = [remotely.put(value) for value in values]
        change(values)
        assert look(*map(remotely.get, refs)) == AS_HANDED_OVER
        yield keeper.look(*refs)


def by_a_job_of_a_pool_that_waits(rounds: Iterator[Round]) -> Iterator[Any]:
    with remotely.Pool(Keeper, 1) as pool:
        for each in rounds:
            _ = pool.submit(Keeper.hold, each.folder / "go")
            future = pool.submit(Keeper.look, *each.values)
            each.go()
            yield future.result()


def by_a_member_that_replaces_another(rounds: Iterator[Round]) -> Iterator[Any]:
    for values, _ in rounds:
        with remotely.Pool(Restarted, 1, *values) as pool:
            change(values)
            with pytest.raises(remotely.ActorDied):
                pool.submit(Keeper.die).result()
            yield pool.submit(Keeper.kept).result()


def by_a_job_of_an_executor(rounds: Iterator[Round]) -> Iterator[Any]:
    with remotely.Executor(1, cpus=0) as executor:
        for each in rounds:
            _ = executor.submit(wait_until, (each.folder / "go").exists, "it may go on")
            future = executor.submit(look, *each.values)
            each.go()
            yield future.result()


def by_joblib(rounds: Iterator[Round]) -> Iterator[Any]:
    joblib = pytest.importorskip("joblib")
    remotely.register_joblib()

    def calls(values: list[Any]) -> Iterator[Any]:
        for _ in range(2):  # as many as joblib reads at a time
            yield joblib.delayed(look)(*values)
        change(values)
        yield joblib.delayed(look)(*values)

    with (
        joblib.parallel_config(backend="remotely", cpus=0),
        joblib.Parallel(n_jobs=2, batch_size=1) as parallel,
    ):
        for values, _ in rounds:
            first, second, changed = parallel(calls(values))
            assert first == second
            assert changed == [((2,), True)] * 3
            yield first


HANDED_OVER = [
    by_a_call,
    by_submit,
    by_a_call_of_a_group,
    by_a_batched_call,
    beside_a_future,
    behind_a_call_that_waits_for_a_future,
    by_a_stream,
    by_a_constructor,
    by_the_constructor_of_a_second_life,
    by_a_retry,
    by_put,
    by_a_job_of_a_pool_that_waits,
    by_a_member_that_replaces_another,
    by_a_job_of_an_executor,
    by_joblib,
]


def rounds_in(folder: Path) -> Iterator[Round]:
    for size in SIZES:
        own = folder / str(size)
        own.mkdir()
        yield Round(new_values(size), own)


@pytest.mark.parametrize("path", HANDED_OVER)
def test_an_argument_arrives_as_it_was_and_is_writable(
    cluster: str, tmp_path: Path, path: Callable[[Iterator[Round]], Iterator[Any]]
) -> None:
    arrived = dict(zip(SIZES, path(rounds_in(tmp_path)), strict=True))
    assert arrived == dict.fromkeys(SIZES, AS_HANDED_OVER)


# --- what is returned -----------------------------------------------------------------------------


def of_a_method() -> Iterator[Any]:
    keeper = Keeper()
    for size in SIZES:
        for future in [keeper.filled.submit(size, number) for number in range(CHANGES)]:
            yield future.result()


def of_an_async_method() -> Iterator[Any]:
    keeper = AsyncKeeper()
    for size in SIZES:
        for future in [keeper.filled_async.submit(size, number) for number in range(CHANGES)]:
            yield future.result()


def of_a_method_on_a_thread() -> Iterator[Any]:
    keeper = ConcurrentKeeper()
    for size in SIZES:
        for future in [keeper.filled.submit(size, number) for number in range(CHANGES)]:
            yield future.result()


def of_a_stream() -> Iterator[Any]:
    keeper = Keeper()
    for size in SIZES:
        yield from keeper.stream(size)


def of_an_async_stream() -> Iterator[Any]:
    keeper = AsyncKeeper()
    for size in SIZES:
        yield from keeper.stream_async(size)


def of_a_stream_on_a_thread() -> Iterator[Any]:
    keeper = ConcurrentKeeper()
    for size in SIZES:
        yield from keeper.stream(size)


def of_an_attribute() -> Iterator[Any]:
    keeper = AsyncKeeper()
    for size in SIZES:
        for number in range(CHANGES):
            keeper.filled(size, number)
            yield keeper.buffer


def of_a_reference() -> Iterator[Any]:
    keeper = Keeper()
    for size in SIZES:
        futures = [keeper.filled.submit(size, number) for number in range(CHANGES)]
        for reference in [remotely.ref(future) for future in futures]:
            yield remotely.get(reference)


def of_a_future_that_is_passed_on() -> Iterator[Any]:
    keeper, other = Keeper(), Keeper()
    for size in SIZES:
        futures = [keeper.filled.submit(size, number) for number in range(CHANGES)]
        for future in [other.echo.submit(future) for future in futures]:
            yield future.result()


def of_a_future_that_waits_elsewhere_too() -> Iterator[Any]:
    """Its result is changed once it was passed on, before the call that it is for can leave."""
    keeper, other, third = Keeper(), Keeper(), Keeper()
    for size in SIZES:
        folder = Path(tempfile.mkdtemp())
        waiting = third.hold.submit(folder / "go")
        first = other.echo.submit(waiting)  # all later calls of it wait for that
        done = [keeper.filled.submit(size, number) for number in range(CHANGES // 2)]
        for future in done:
            future.result()
        coming = [keeper.filled.submit(size, number) for number in range(CHANGES // 2, CHANGES)]
        passed_on = [other.echo.submit(future) for future in [*done, *coming]]
        for future in [*done, *coming]:
            future.result()[:] = 99
        (folder / "go").touch()
        assert first.result() is None
        shutil.rmtree(folder)
        for future in passed_on:
            yield future.result()


def of_a_job() -> Iterator[Any]:
    with remotely.Pool(Keeper, 1) as pool:
        for size in SIZES:
            for future in [pool.submit(Keeper.filled, size, number) for number in range(CHANGES)]:
                yield future.result()


RETURNED = [
    of_a_method,
    of_an_async_method,
    of_a_method_on_a_thread,
    of_a_stream,
    of_an_async_stream,
    of_a_stream_on_a_thread,
    of_an_attribute,
    of_a_reference,
    of_a_future_that_is_passed_on,
    of_a_future_that_waits_elsewhere_too,
    of_a_job,
]


@pytest.mark.parametrize("path", RETURNED)
def test_a_result_arrives_as_it_was_and_is_writable(
    cluster: str, path: Callable[[], Iterator[Any]]
) -> None:
    arrived = [(memoryview(value).nbytes, look(value)) for value in path()]
    expected = [(size, [((n,), True)]) for size in SIZES for n in range(CHANGES)]
    assert arrived == expected
