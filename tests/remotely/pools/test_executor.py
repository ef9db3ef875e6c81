"""remotely.Executor: the promises of concurrent.futures.Executor, on a cluster."""

import asyncio
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.api import connection
from remotely.calling.engine import CallEngine
from remotely.engines.in_process import InProcess
from remotely.errors import ActorDied, NotPicklable, RemoteTraceback
from remotely.machine import this_machine
from remotely.pools.executor import PROCESS_IDLE_S
from remotely.pools.scheduler import give_back_idle
from tests.clusters import Here, freeze, printed, processes, wait_until
from tests.every_way_to_wait import run_in
from tests.remotely.counter import Counter


def square(number: int) -> int:
    return number * number


def make_lock() -> object:
    return threading.Lock()


def three_fails(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def pid(_: object = None) -> int:
    return os.getpid()


def meet(folder: Path, count: int) -> int:
    """Return when `count` calls run at the same time."""
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len(list(folder.iterdir())) >= count, "the others")
    return os.getpid()


def wait_for(file: Path) -> int:
    wait_until(file.exists, f"the file {file}")
    return os.getpid()


def die_at_first(file: Path) -> int:
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return os.getpid()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@remotely.remote_class(cpus=0)
class Gate:
    def wait(self, file: Path) -> str:
        wait_for(file)
        return "opened"

    def fail(self) -> None:
        raise ValueError("gate")


def die_at_first_again(file: Path) -> int:
    return die_at_first(file)


def test_submit_and_map_return_results_in_order_with_and_without_chunks(cluster: str) -> None:
    with remotely.Executor(2) as executor:
        assert list(executor.map(square, range(20))) == [n * n for n in range(20)]
        assert list(executor.map(pow, range(10), itertools.repeat(2), chunksize=3)) == [
            n * n for n in range(10)
        ]
        assert executor.submit(int, "11", base=2).result() == 3
        assert executor.submit(lambda: square(4)).result() == 16
        assert list(executor.map(square, [])) == []


@pytest.mark.parametrize("chunksize", [1, 4])
def test_an_error_is_raised_in_place_of_its_result_with_its_remote_traceback(
    here: None, chunksize: int
) -> None:
    with remotely.Executor(2) as executor:
        with pytest.raises(ValueError, match="three") as failed:
            list(executor.map(three_fails, range(6), chunksize=chunksize))
        submitted = executor.submit(three_fails, 3).exception()
    assert isinstance(submitted, ValueError)
    for error in (failed.value, submitted):
        assert isinstance(error.__cause__, RemoteTraceback)
        trace = str(error.__cause__)
        assert "In Runner-" in trace
        assert 'raise ValueError("three")' in trace
        assert "pools/executor.py" not in trace


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


def raise_falsy(_: int = 0) -> None:
    raise Falsy


def test_an_error_that_is_false_is_an_error(here: None) -> None:
    with remotely.Executor(1) as executor:
        assert isinstance(executor.submit(raise_falsy).exception(40), Falsy)
        for chunksize in (1, 2):
            with pytest.raises(Falsy):
                list(executor.map(raise_falsy, range(2), chunksize=chunksize))


def test_the_results_before_an_error_in_a_chunk_are_yielded(here: None) -> None:
    with remotely.Executor(1) as executor:
        results = executor.map(three_fails, range(6), chunksize=6)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(results)


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def method(self, _: int = 0) -> None: ...


def test_a_value_that_does_not_pickle_is_named_and_fails_only_its_call(here: None) -> None:
    with remotely.Executor(1) as executor:
        error = executor.submit(Holder().method).exception()
        assert isinstance(error, NotPicklable)
        assert "Holder.method" in str(error)
        assert "lock" in str(error)
        error = executor.submit(square, Holder()).exception()  # type: ignore[arg-type]
        assert "square: args[0].lock" in str(error)
        future: Any = Counter().add.submit()
        error = executor.submit(max, future, key=Holder()).exception()  # type: ignore[arg-type]
        assert "max: kwargs['key'].lock" in str(error)
        with pytest.raises(NotPicklable, match=r"square: items\[1\]\[0\]\.lock"):
            list(executor.map(square, [1, Holder()], chunksize=2))
        with pytest.raises(NotPicklable, match=r"Holder\.method"):
            list(executor.map(Holder().method, range(2)))
        error = executor.submit(make_lock).exception()
        assert "the result of make_lock() cannot" in str(error)
        assert executor.submit(square, 3).result() == 9


def test_calls_are_named_after_their_functions(here: None) -> None:
    with remotely.Executor(1) as executor:
        failed: Any = Gate().fail.submit()
        error = executor.submit(square, failed).exception()
        assert "square() is a future that failed" in error.__notes__[-1]  # type: ignore[union-attr]
        list(executor.map(square, range(4), chunksize=2))
        list(executor.map(square, range(4)))
        (runner,) = [each for each in remotely.actors() if each.class_name == "Runner"]
        calls = {each.method: each.calls for each in runner.methods}
        assert calls == {"__init__": 1, "square() of a chunk": 2, "square()": 4}


@pytest.mark.parametrize("name", ["x" * 70_000, "\ud800", "a chunk of x", None])
def test_a_function_may_have_any_name(here: None, name: Any) -> None:
    class Named:
        __qualname__ = "Named"

        def __call__(self, value: int) -> int:
            return value

    function: Any = Named()
    function.__qualname__ = name
    with remotely.Executor(1) as executor:
        assert executor.submit(function, 1).result() == 1
        assert list(executor.map(function, range(4), chunksize=2)) == [0, 1, 2, 3]


def test_a_call_sees_its_arguments_as_they_were_when_it_was_submitted(
    here: None, tmp_path: Path
) -> None:
    with remotely.Executor(1) as executor:
        blocker = executor.submit(wait_for, tmp_path / "go")
        numbers = [1, 2]
        future = executor.submit(sum, numbers)
        numbers.append(3)
        (tmp_path / "go").touch()
        assert future.result() == 3
        assert blocker.done()


def test_a_call_that_is_sent_again_has_the_same_arguments(here: None) -> None:
    with remotely.Executor(1) as executor:
        process = executor.submit(pid).result()
        freeze(process)
        numbers = [1, 2]
        future = executor.submit(sum, numbers)
        numbers.append(3)
        os.kill(process, signal.SIGKILL)
        assert future.result(40) == 3


def test_a_call_that_has_not_begun_can_be_cancelled(here: None, tmp_path: Path) -> None:
    with remotely.Executor(1) as executor:
        running = executor.submit(wait_for, tmp_path / "go")
        waiting = [executor.submit(square, n) for n in range(3)]
        wait_until(running.running, "the call runs")
        assert not running.cancel()
        assert waiting[1].cancel()
        (tmp_path / "go").touch()
        assert [waiting[0].result(), waiting[2].result()] == [0, 4]
        with pytest.raises(CancelledError):
            waiting[1].result()
        assert wait(waiting).not_done == set()


def test_a_long_call_does_not_hold_up_the_calls_of_other_processes(
    here: None, tmp_path: Path
) -> None:
    with remotely.Executor(2) as executor:
        long = executor.submit(wait_for, tmp_path / "go")
        short = [executor.submit(square, n) for n in range(50)]
        assert [future.result(40) for future in short] == [n * n for n in range(50)]
        assert not long.done()
        (tmp_path / "go").touch()


def test_calls_sent_ahead_of_a_long_one_go_to_other_processes(here: None, tmp_path: Path) -> None:
    with remotely.Executor(2) as executor:
        assert sum(executor.map(square, range(300))) > 0  # so that calls are sent ahead
        quick = [executor.submit(square, n) for n in range(200)]
        long = executor.submit(wait_for, tmp_path / "go")
        quick += [executor.submit(square, n) for n in range(200)]
        assert [call.result(20) for call in quick] == [n * n for n in range(200)] * 2
        assert not long.done()
        (tmp_path / "go").touch()
        assert long.result(40)


def test_a_call_that_was_taken_back_can_be_cancelled(here: None, tmp_path: Path) -> None:
    with remotely.Executor(2) as executor:
        assert sum(executor.map(square, range(300))) > 0
        calls = [executor.submit(wait_for, tmp_path / "go") for _ in range(40)]
        wait_until(lambda: sum(call.running() for call in calls) == 2, "the others are taken back")
        executor.shutdown(wait=False, cancel_futures=True)
        (tmp_path / "go").touch()
        assert sum(call.cancelled() for call in calls) == 38
        assert len([call.result(40) for call in calls if not call.cancelled()]) == 2


def test_a_call_that_waits_for_an_argument_keeps_no_process(here: None, tmp_path: Path) -> None:
    gate = Gate()
    with remotely.Executor(1) as executor:
        late = gate.wait.submit(tmp_path / "go")
        calls = [executor.submit(str, late) for _ in range(3)]
        assert executor.submit(square, 3).result(40) == 9
        assert calls[0].cancel()
        assert not calls[1].running()
        (tmp_path / "go").touch()
        assert [call.result(40) for call in calls[1:]] == ["opened", "opened"]
        failed = gate.fail.submit()
        with pytest.raises(ValueError, match="gate"):
            executor.submit(str, failed).result(40)


def test_shutdown_does_not_wait_for_the_argument_of_a_cancelled_call(
    here: None, tmp_path: Path
) -> None:
    late = Gate().wait.submit(tmp_path / "go")
    executor = remotely.Executor(1)
    call = executor.submit(str, late)
    assert call.cancel()
    assert wait([call], 0).done == {call}
    executor.shutdown(wait=True)
    assert not late.done()
    (tmp_path / "go").touch()
    assert late.result(40) == "opened"


def test_idle_processes_are_given_back_when_somebody_needs_room(here: None) -> None:
    with remotely.Executor(1) as executor:
        assert list(executor.map(square, range(4))) == [0, 1, 4, 9]
        begin = time.monotonic()
        give_back_idle()
        wait_until(lambda: not remotely.status().actors, "its processes have ended")
        assert time.monotonic() - begin < PROCESS_IDLE_S
        assert executor.submit(square, 2).result(40) == 4


def test_there_are_as_many_processes_as_there_is_room_and_at_most_max_workers(
    nothing_left: None, tmp_path: Path
) -> None:
    remotely.connect(cpus=3, resources={"license": 2})
    cores, licenses = tmp_path / "cores", tmp_path / "licenses"
    cores.mkdir()
    licenses.mkdir()
    with remotely.Executor() as executor:
        meetings = [executor.submit(meet, cores, 3) for _ in range(3)]
        assert len({future.result(40) for future in meetings}) == 3
        assert len(set(executor.map(pid, range(50)))) <= 3
        assert len(remotely.status().actors) == 3
    with remotely.Executor(resources={"license": 1}) as executor:
        meetings = [executor.submit(meet, licenses, 2) for _ in range(8)]
        assert len({future.result(40) for future in meetings}) == 2
    with remotely.Executor(cpus=0) as executor:  # reserves nothing: one process for each core
        assert len(set(executor.map(pid, range(100)))) <= 3
    with remotely.Executor(2) as executor:
        list(executor.map(pid, range(20)))
        assert len(remotely.status().actors) <= 2
    assert remotely.status().actors == []


def test_on_a_scripts_own_cluster_too_each_process_takes_a_core(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where other actors share the cores."""
    monkeypatch.setattr(this_machine, "cores", lambda: 2)
    others = remotely.group(Counter, 3)
    wait_until(lambda: "which they share" in printed(), "the line that says so")
    with remotely.Executor() as executor:
        assert set(executor.map(pid, range(50)))
        assert len(remotely.status().actors) <= len(others) + 2


@pytest.fixture(scope="module")
def three_cores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    cluster = Here(tmp_path_factory.mktemp("three"), cpus=3)
    yield cluster
    cluster.stop()


@pytest.fixture
def on_three_cores(three_cores: Here, nothing_left: None) -> Iterator[None]:
    """Connect to a cluster with 3 CPUs, and assert that the test leaves no actor behind."""
    before = three_cores.below_worker()
    remotely.connect(three_cores.address, key=three_cores.key)
    yield
    remotely.shutdown()
    wait_until(lambda: three_cores.below_worker() <= before, "the end of all actors")


def test_freed_cores_are_used_without_requests_for_the_status(
    on_three_cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = remotely.options(Counter, cpus=2)()
    with monkeypatch.context() as patch, remotely.Executor() as executor:
        patch.setattr(type(connection.current()), "report", None)
        meetings = [executor.submit(meet, tmp_path, 2) for _ in range(2)]
        wait_until(lambda: list(tmp_path.iterdir()), "the first process")
        remotely.close(other)
        assert len({meeting.result(40) for meeting in meetings}) == 2


def test_idle_processes_end_and_start_again_when_there_is_work(
    on_three_cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remotely.pools.executor.PROCESS_IDLE_S", 0.2)
    with remotely.Executor() as executor:
        meetings = [executor.submit(meet, tmp_path, 3) for _ in range(3)]
        before = {meeting.result(40) for meeting in meetings}
        remotely.options(Counter, cpus=3)()  # waits for all cores
        assert executor.submit(pid).result(40) not in before


def test_sequential_calls_keep_one_process_and_the_others_end(
    on_three_cores: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remotely.pools.executor.PROCESS_IDLE_S", 0.3)
    with remotely.Executor() as executor:
        for meeting in [executor.submit(meet, tmp_path, 3) for _ in range(3)]:
            meeting.result(40)

        def is_alone() -> bool:
            for _ in range(10):
                executor.submit(pid).result(40)
            return len(remotely.status().actors) == 1

        wait_until(is_alone, "the end of the other two")


def test_machines_that_join_later_are_used(nothing_left: None, tmp_path: Path) -> None:
    cluster = Here(tmp_path / "here", cpus=1)
    folder = tmp_path / "meeting"
    folder.mkdir()
    try:
        remotely.connect(cluster.address, key=cluster.key)
        with remotely.Executor() as executor:
            meetings = [executor.submit(meet, folder, 3) for _ in range(3)]
            wait_until(lambda: list(folder.iterdir()), "the first process")
            cluster.join(cpus=2)
            assert len({future.result(40) for future in meetings}) == 3
        remotely.shutdown()
    finally:
        cluster.stop()


@pytest.mark.promise("exit_status")
def test_a_lost_call_is_retried_if_it_is_idempotent_and_otherwise_fails(
    cluster: str, tmp_path: Path
) -> None:
    again = functools.partial(remotely.idempotent(retries=1)(die_at_first_again), tmp_path / "one")
    with remotely.Executor(2) as executor:
        assert executor.submit(again).result(40)
        error = executor.submit(die_at_first, tmp_path / "two").exception(40)
        assert isinstance(error, ActorDied)
        assert (error.exit, error.may_have_run) == ("SIGKILL", True)
        assert list(executor.map(square, range(4))) == [0, 1, 4, 9]


def kill_or_note(folder: Path, number: int) -> int:
    (folder / str(number)).touch()
    if number % 40 == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.promise("exact_doubt")
def test_calls_sent_ahead_to_a_process_that_died_run_in_another(here: None, tmp_path: Path) -> None:
    with remotely.Executor(2) as executor:
        futures = [executor.submit(kill_or_note, tmp_path, number) for number in range(200)]
        errors = {n: future.exception(40) for n, future in enumerate(futures)}
    failed = {n: error for n, error in errors.items() if error is not None}
    assert set(range(7, 200, 40)) <= set(failed)
    assert all(isinstance(e, ActorDied) and e.may_have_run for e in failed.values())
    assert {int(file.name) for file in tmp_path.iterdir()} == set(range(200))


def test_an_initializer_runs_in_each_process_and_its_error_fails_the_calls(
    here: None,
) -> None:
    with remotely.Executor(2, initializer=os.putenv, initargs=("NAME", "value")) as executor:
        command = [sys.executable, "-c", "import os; print(os.environ['NAME'])"]
        assert executor.submit(subprocess.check_output, command).result() == b"value\n"
    with remotely.Executor(2, initializer=three_fails, initargs=(3,)) as executor:
        assert isinstance(executor.submit(square, 1).exception(40), ValueError)


def test_map_has_a_timeout_and_a_buffer_size_for_endless_iterables(
    here: None, tmp_path: Path
) -> None:
    with remotely.Executor(1) as executor:
        results = executor.map(wait_for, [tmp_path / "go"] * 3, timeout=0.05)
        with pytest.raises(TimeoutError):
            next(results)
        (tmp_path / "go").touch()
        taken = itertools.count()
        endless = executor.map(square, taken, buffersize=5)
        assert list(itertools.islice(endless, 10)) == [n * n for n in range(10)]
        assert next(taken) <= 16


def test_asyncio_can_use_it_as_an_executor(here: None) -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        with remotely.Executor(2) as executor:
            calls = [loop.run_in_executor(executor, square, n) for n in range(8)]
            return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [n * n for n in range(8)]


@pytest.mark.parametrize("chunksize", [1, 3])
def test_map_keeps_no_result_that_it_has_yielded(here: None, chunksize: int) -> None:
    with remotely.Executor(1) as executor:
        for result in executor.map(lambda _: {1, 2}, range(6), chunksize=chunksize):
            dropped = weakref.ref(result)
            del result
            wait_until(lambda: dropped() is None, "it is freed")  # noqa: B023 - called here


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_every_function_of_asyncio_waits_for_its_calls(
    here: None, tmp_path: Path, loop: str
) -> None:
    with remotely.Executor(2) as executor:
        running = executor.submit(wait_for, tmp_path / "go")
        wait_until(running.running, "it runs")
        run_in(loop, lambda value: executor.submit(int, value), running)
        (tmp_path / "go").touch()
        assert running.result(40)


def test_a_callback_may_submit_the_next_call(here: None) -> None:
    seen: list[int] = []
    done = threading.Event()
    with remotely.Executor(2) as executor:

        def follow(future: Any) -> None:
            seen.append(future.result())
            if len(seen) < 20:
                executor.submit(square, len(seen)).add_done_callback(follow)
            else:
                done.set()

        executor.submit(square, 0).add_done_callback(follow)
        assert done.wait(40)
    assert seen == [n * n for n in range(20)]


def test_shutdown_refuses_further_calls_and_can_cancel_waiting_ones(
    here: None, tmp_path: Path
) -> None:
    executor = remotely.Executor(1)
    running = executor.submit(wait_for, tmp_path / "go")
    wait_until(running.running, "the call runs")
    waiting = [executor.submit(square, n) for n in range(3)]
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    assert len(list(as_completed(waiting, 1))) == 3
    with pytest.raises(RuntimeError, match="after shutdown"):
        _ = executor.submit(square, 1)
    (tmp_path / "go").touch()
    assert running.result(40)
    wait_until(lambda: remotely.status().actors == [], "the end of its process")
    executor.shutdown()


def test_a_dropped_executor_ends_its_processes_after_the_last_call(here: None) -> None:
    future = remotely.Executor(2).submit(square, 5)
    assert future.result(40) == 25
    del future
    wait_until(lambda: remotely.status().actors == [], "the end of its processes")


def test_remotely_shutdown_fails_its_running_calls(here: None, tmp_path: Path) -> None:
    executor = remotely.Executor(2)
    futures = [executor.submit(wait_for, tmp_path / "never") for _ in range(4)]
    wait_until(futures[0].running, "a call runs")
    remotely.shutdown()
    for future in futures:
        assert isinstance(future.exception(40), remotely.RemotelyError)
    executor.shutdown()


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda: remotely.Executor(0), "max_workers=0"),
        (lambda: remotely.Executor(2).map(square, [1], chunksize=0), "chunksize=0"),
        (lambda: remotely.Executor(2).map(square, [1], buffersize=0), "buffersize=0"),
        (lambda: remotely.Executor(cpus=-1), "cpus=-1"),
        (lambda: remotely.Executor(cpu=1), "did you mean 'cpus'"),
        (
            lambda: remotely.Executor(name="x"),
            "an Executor has no option 'name'; there are max_workers",
        ),
    ],
)
def test_bad_arguments_are_named(here: None, act: Callable[[], object], error: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        act()
    assert error in str(refused.value)


def test_calls_fail_if_a_process_can_never_be_placed(here: None) -> None:
    with remotely.Executor(cpus=100) as executor:
        error = executor.submit(square, 1).exception(40)
        assert isinstance(error, remotely.NoResources)


def test_in_process_calls_run_on_the_thread_that_submits_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_engine", CallEngine(InProcess()))
    with remotely.Executor(cpus=0) as executor:
        assert executor.submit(threading.get_ident).result() == threading.get_ident()
        assert list(executor.map(square, range(3))) == [0, 1, 4]
        assert executor.submit(lambda: executor.submit(square, 3).result()).result() == 9
        assert isinstance(executor.submit(three_fails, 3).exception(), ValueError)


_SCRIPT = """
import time, remotely
def work(seconds):
    print("works", flush=True)
    time.sleep(seconds)
    return seconds
"""
_INTERRUPTED = """
with remotely.Executor(2) as executor:
    list(executor.map(work, [60] * 4))
"""
_CONTINUES = """
executor = remotely.Executor(2)
future = executor.submit(work, 0.3)
future.add_done_callback(lambda future: print("result", future.result(), flush=True))
executor.shutdown(wait=False)
"""


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        (_INTERRUPTED, -signal.SIGINT, "KeyboardInterrupt"),
        (_CONTINUES, 0, ""),
    ],
)
def test_a_script_leaves_no_process_however_it_leaves_its_executor(
    ending: str, code: int, said: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT + ending)
    running = subprocess.Popen(
        [sys.executable, "-u", script],
        env={**os.environ, "REMOTELY_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    assert "works" in running.stdout.readline()
    if ending is _INTERRUPTED:
        os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=40)
    assert running.returncode == code, err
    assert said in err
    assert ("result 0.3" in out) == (ending is _CONTINUES)
    wait_until(lambda: not processes(str(tmp_path)), "the end of its processes")


def test_threads_can_share_an_executor(here: None) -> None:
    results: dict[int, list[int]] = {}
    with remotely.Executor(3) as executor:

        def work(n: int) -> None:
            results[n] = [executor.submit(square, n * 100 + i).result(40) for i in range(50)]

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {n: [(n * 100 + i) ** 2 for i in range(50)] for n in range(4)}


def test_processes_start_when_there_is_work_for_them(here: None) -> None:
    with remotely.Executor(8) as executor:
        assert executor.submit(square, 2).result(40) == 4
        assert len(remotely.status().actors) == 1


@remotely.remote_class(cpus=1)
class Wanting:
    def pid(self) -> int:
        return os.getpid()


def test_idle_processes_are_given_back_when_somebody_waits_for_room(on_three_cores: None) -> None:
    gc.disable()  # each must go with the scheduler's reference
    try:
        executor = remotely.Executor()
        assert list(executor.map(abs, range(10))) == list(range(10))
        wanting = [remotely.options(Wanting, patience_s=5)() for _ in range(3)]
        assert len({each.pid() for each in wanting}) == 3
        del wanting
        assert list(executor.map(abs, range(10))) == list(range(10))
        executor.shutdown()
    finally:
        gc.enable()
