"""remotely.Pool: actors of one class that share out items."""

import contextvars
import functools
import gc
import itertools
import os
import queue
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.api import connection
from remotely.api.remote_class import make_on
from remotely.calling.engine import CallEngine
from remotely.engines.in_process import InProcess
from remotely.errors import ActorDied, NoResources, NotPicklable, RemoteTraceback
from remotely.futures.future import CallFuture
from remotely.pools import pool as pool_module
from remotely.pools import scheduler
from tests.clusters import Here, wait_until
from tests.forks import raised_in_a_fork
from tests.striking import struck_after


@remotely.remote_class(max_restarts=1)
class Player:
    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.played = 0

    def play(self, number: int) -> int:
        self.played += 1
        if number == 13:
            raise ValueError("thirteen")
        return self.base + number

    def play_two(self, first: int, second: int) -> int:
        return first * 100 + second

    def wait_for(self, file: Path) -> int:
        wait_until(file.exists, f"the file {file}")
        return os.getpid()

    @remotely.idempotent(retries=1)
    def die_at_first(self, file: Path) -> int:
        return self.die_unless(file)

    def die_unless(self, file: Path) -> int:
        if not file.exists():
            file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    def thread(self, item: int) -> tuple[int, int]:
        return threading.get_ident(), item

    def pid(self, _: int = 0) -> int:
        return os.getpid()

    def ask(self, other: Any) -> int:
        return other.pid()  # type: ignore[no-any-return]

    def are_same(self, one: object, other: object) -> bool:
        return one is other

    def total(self, parts: dict[str, Any]) -> int:
        total: int = sum(parts["items"]) + parts["more"][0]
        return total

    async def later(self, number: int) -> int:
        return number


def test_results_are_in_order_or_unordered(cluster: str) -> None:
    with remotely.Pool(Player, 3, 1000) as pool:
        wanted = [1000 + n for n in range(14, 60)]
        assert pool.map(Player.play, range(14, 60)) == wanted
        assert list(pool.imap(Player.play, iter(range(14, 60)))) == wanted
        assert sorted(pool.imap_unordered(Player.play, range(14, 60))) == wanted
        assert pool.starmap(Player.play_two, [(1, 2), (3, 4)]) == [102, 304]
        assert pool.submit(Player.play_two, 5, second=6).result() == 506
        assert pool.map(Player.play, []) == []
        assert (len(pool), repr(pool)) == (3, "<pool of 3 Player>")
        assert sum(pool.actors.played) == 3 * 46
        assert isinstance(pool.actors[0], Player)


def test_a_pool_or_an_executor_as_an_argument_is_refused_with_advice(here: None) -> None:
    asker = Player()
    with remotely.Pool(Player, 1) as pool, remotely.Executor(1) as executor:
        with pytest.raises(NotPicklable, match=r"^ask: args\[0\] is a Pool, .*pool\.actors"):
            asker.ask(pool)
        assert asker.ask(pool.actors) == pool.actors.pid()
        with pytest.raises(NotPicklable, match=r"^ask: args\[0\]\['by'\] is an Executor"):
            asker.ask({"by": executor})
        with pytest.raises(NotPicklable, match=r"^ask: args\[0\]\.__self__ is an Executor"):
            asker.ask(executor.submit)


def test_a_slow_item_does_not_hold_up_the_others(here: None, tmp_path: Path) -> None:
    with remotely.Pool(Player, 2) as pool:
        slow = pool.submit(Player.wait_for, tmp_path / "go")
        assert pool.map(Player.play, range(10)) == list(range(10))
        assert not slow.done()
        (tmp_path / "go").touch()
        assert isinstance(slow.result(40), int)


def test_imap_unordered_yields_the_first_completed_result_first(here: None, tmp_path: Path) -> None:
    existing = tmp_path / "existing"
    existing.touch()
    with remotely.Pool(Player, 2) as pool:
        results = pool.imap_unordered(Player.wait_for, [tmp_path / "go", existing])
        first = next(results)
        (tmp_path / "go").touch()
        assert next(results) != first


def test_an_error_is_raised_or_returned_in_place_of_its_result(here: None) -> None:
    with remotely.Pool(Player, 2) as pool:
        with pytest.raises(ValueError, match="thirteen") as failed:
            pool.map(Player.play, range(20))
        assert isinstance(failed.value.__cause__, RemoteTraceback)
        results: list[Any] = pool.map(Player.play, range(20), return_exceptions=True)
        assert isinstance(results.pop(13), ValueError)
        assert results == [n for n in range(20) if n != 13]
        unordered: Iterator[Any] = pool.imap_unordered(
            Player.play, range(20), return_exceptions=True
        )
        assert sum(isinstance(result, ValueError) for result in unordered) == 1
        bad: list[Any] = [1, threading.Lock(), 3]
        results = pool.map(Player.play, bad, return_exceptions=True)
        assert isinstance(results[1], NotPicklable)
        assert "play: args[0]" in str(results[1])
        assert (results[0], results[2]) == (1, 3)


@pytest.mark.parametrize("ordered", [True, False])
def test_an_endless_iterable_is_read_only_a_little_ahead(here: None, ordered: bool) -> None:
    read = itertools.count(14)
    with remotely.Pool(Player, 2) as pool:
        results = (pool.imap if ordered else pool.imap_unordered)(Player.play, read)
        assert len(list(itertools.islice(results, 100))) == 100
        assert next(read) < 14 + 100 + 2 * 2 * 64 + 2


@pytest.mark.parametrize("ordered", [True, False])
def test_the_iterable_may_wait_for_the_consumer_of_the_results(here: None, ordered: bool) -> None:
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    found.put(1)
    with remotely.Pool(Player, 2) as pool:
        results = (pool.imap if ordered else pool.imap_unordered)(Player.play, iter(found.get, 5))
        for result in results:
            found.put(result + 1)
    assert result == 4


@pytest.mark.parametrize("return_exceptions", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_an_error_of_the_iterable_is_raised_after_the_results_of_its_items(
    here: None, ordered: bool, return_exceptions: bool
) -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise KeyError("three")

    with remotely.Pool(Player, 2) as pool:
        imap = pool.imap if ordered else pool.imap_unordered
        results = imap(Player.play, items(), return_exceptions=return_exceptions)
        assert {next(results), next(results)} == {1, 2}
        with pytest.raises(KeyError, match="three"):
            next(results)
        assert list(results) == []


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("is_begun", [True, False])
def test_dropping_the_results_stops_the_reader(here: None, ordered: bool, is_begun: bool) -> None:
    is_closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from itertools.count(14)
        finally:
            is_closed.set()

    with remotely.Pool(Player, 2) as pool:
        results = (pool.imap if ordered else pool.imap_unordered)(Player.play, items())
        if is_begun:
            next(results)
        del results
        assert is_closed.wait(40)
        assert pool.submit(Player.play, 1).result(40) == 1


def test_a_blocked_iterable_does_not_keep_a_dropped_pool(here: None) -> None:
    gate = threading.Event()
    results = remotely.Pool(Player, 2).imap(Player.play, itertools.chain([1], iter(gate.wait, 0)))
    assert next(results) == 1
    del results
    wait_until(lambda: remotely.status().actors == [], "the end of its members")
    gate.set()


def test_a_caught_error_does_not_keep_a_dropped_pool(here: None) -> None:
    gc.disable()
    try:
        with pytest.raises(ValueError, match="thirteen"):
            list(remotely.Pool(Player, 2).imap(Player.play, [13]))
        with pytest.raises(TypeError):
            list(remotely.Pool(Player, 2).imap(Player.play, map(len, [1])))  # type: ignore[arg-type]
        wait_until(lambda: remotely.status().actors == [], "the end of their members")
    finally:
        gc.enable()


def test_ctrl_c_interrupts_the_wait_for_the_next_result(here: None) -> None:
    gate = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        os.kill(os.getpid(), signal.SIGINT)
        gate.wait()

    with remotely.Pool(Player, 2) as pool:
        with pytest.raises(KeyboardInterrupt):
            list(pool.imap(Player.play, items()))
        gate.set()
        assert pool.map(Player.play, [1]) == [1]


def test_a_member_goes_on_wherever_an_interrupt_strikes_a_submission(here: None) -> None:
    with remotely.Pool(Player, 1) as pool:
        for n in itertools.count(1):
            with suppress(KeyboardInterrupt), struck_after(n, signal.SIGINT, scheduler) as struck:
                _ = pool.submit(Player.play, 1)
            assert pool.submit(Player.play, 2).result(40) == 2
            if not struck:
                break
    assert n > 2


def test_an_iterable_is_read_in_the_context_of_its_caller(here: None) -> None:
    base = contextvars.ContextVar[int]("base")
    base.set(5)
    with remotely.Pool(Player, 1) as pool:
        assert pool.map(Player.play, (base.get() + n for n in range(2))) == [5, 6]


@pytest.mark.promise("exit_status")
def test_a_dead_member_is_replaced_up_to_max_restarts(cluster: str, tmp_path: Path) -> None:
    with remotely.Pool(Player, 2, 5) as pool:
        before = set(pool.actors.pid())
        assert pool.submit(Player.die_at_first, tmp_path / "one").result(40)
        wait_until(lambda: len(pool) == 2, "the member is replaced")
        assert len(set(pool.actors.pid()) & before) == 1
        assert pool.map(Player.play, range(5)) == [5, 6, 7, 8, 9]
        error = pool.submit(Player.die_unless, tmp_path / "two").exception(40)
        assert isinstance(error, ActorDied)
        assert (error.exit, error.may_have_run) == ("SIGKILL", True)
        wait_until(lambda: len(pool) == 2, "the member is replaced")
        assert pool.map(Player.play, range(5)) == [5, 6, 7, 8, 9]


@remotely.remote_class(max_restarts=1)
class SecondIsSlow:
    def __init__(self, folder: Path) -> None:
        if (folder / "died").exists():
            (folder / "starting").touch()
            wait_until((folder / "go").exists, "permission to continue")

    def die(self, folder: Path) -> None:
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def number(self) -> int:
        return 5


def test_a_replacement_that_finds_no_room_is_tried_again(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusals: list[Exception] = []

    def make(*args: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return make_on(*args)

    monkeypatch.setattr(pool_module, "make_on", make)
    with remotely.Pool(Player, 2) as pool:
        refusals += [NoResources("no room"), NoResources("no room")]
        assert isinstance(pool.submit(Player.die_unless, tmp_path / "one").exception(40), ActorDied)
        wait_until(lambda: len(pool) == 2, "the member is replaced")
        assert not refusals


def test_a_job_waits_for_a_member_that_is_starting(here: None, tmp_path: Path) -> None:
    with remotely.Pool(SecondIsSlow, 1, tmp_path) as pool:
        pool.submit(SecondIsSlow.die, tmp_path).exception(40)
        wait_until((tmp_path / "starting").exists, "the start of the next member")
        job = pool.submit(SecondIsSlow.number)
        assert not job.done()
        (tmp_path / "go").touch()
        assert job.result(40) == 5


def test_waiting_jobs_accept_futures_refs_and_handles_as_arguments(
    cluster: str, tmp_path: Path
) -> None:
    pids = {source.pid() for source in remotely.group(Player, 2)}
    source = remotely.options(Player)(7)
    future, ref, many = source.play.submit(0), remotely.put(20), remotely.put(bytes(1 << 20))
    parts = {"items": [future, ref], "more": (remotely.ref(future), many)}
    item = [1]
    with remotely.Pool(Player, 1) as pool:
        busy = pool.submit(Player.wait_for, tmp_path / "gate")
        waiting = [
            pool.submit(Player.play, future),
            pool.submit(Player.play, remotely.ref(future)),
            pool.submit(Player.play_two, first=future, second=1),
            pool.submit(Player.total, parts),
        ]
        of_dropped_handle = pool.submit(Player.ask, Player())
        (tmp_path / "gate").touch()
        busy.result()
        assert [job.result() for job in waiting] == [7, 7, 701, 7 + 20 + 7]
        assert of_dropped_handle.result() not in pids, "the job has kept the actor"
        assert len(pool.map(Player.ask, (Player() for _ in range(3)))) == 3
        assert pool.submit(Player.are_same, item, item).result()


def test_a_failed_future_as_an_argument_does_not_count_as_a_lost_member(
    here: None, tmp_path: Path
) -> None:
    dead = remotely.options(Player, max_restarts=0)()
    failed = dead.die_unless.submit(tmp_path / "never")
    with remotely.Pool(Player, 1) as pool:
        (pid,) = pool.map(Player.pid, [0])
        assert isinstance(pool.submit(Player.play, failed).exception(), ActorDied)
        assert pool.map(Player.pid, [0]) == [pid]


def test_calls_of_a_pool_without_live_members_say_how_they_died(here: None, tmp_path: Path) -> None:
    mortal = remotely.options(Player, max_restarts=0)
    with remotely.Pool(mortal, 2) as pool:
        pool.submit(Player.die_unless, tmp_path / "one").exception(40)
        assert pool.map(Player.play, range(3)) == [0, 1, 2]
        pool.submit(Player.die_unless, tmp_path / "two").exception(40)
        for _ in range(2):
            error = pool.submit(Player.play, 3).exception(40)
            assert isinstance(error, ActorDied)
            assert "SIGKILL" in str(error)
            assert not error.may_have_run
            assert "the call did not run" in str(error)
    with remotely.Pool(mortal, 1) as pool:
        lost = pool.submit(Player.die_at_first, tmp_path / "three")  # to be retried
        behind = pool.submit(Player.play, 3)
        doubts = [getattr(call.exception(40), "may_have_run", None) for call in (lost, behind)]
        assert doubts == [True, False]


def shows(bars: list[Any]) -> Callable[..., Iterable[Any]]:
    """Return a progress bar like tqdm, which records its total and items."""

    def bar(iterable: Iterable[Any], *, total: int | None) -> Iterator[Any]:
        bars.append(total)
        for item in iterable:
            bars.append("*")
            yield item

    return bar


def test_a_progress_bar_gets_each_result_and_the_total_if_it_is_known(here: None) -> None:
    bars: list[Any] = []
    with remotely.Pool(Player, 2) as pool:
        assert pool.map(Player.play, range(3), progress=shows(bars)) == [0, 1, 2]
        assert list(pool.imap_unordered(Player.play, iter([7]), progress=shows(bars))) == [7]
        rich = pytest.importorskip("rich.progress")
        assert pool.map(Player.play, range(3), progress=rich.track) == [0, 1, 2]
    assert bars == [3, "*", "*", "*", None, "*"]


def test_concurrent_actors_get_several_items_at_a_time(here: None, tmp_path: Path) -> None:
    several = remotely.options(Waiter, concurrency=3)
    with remotely.Pool(several, 1) as pool:
        assert pool.map(Waiter.meet, [tmp_path] * 3) == [3, 3, 3]
    with remotely.Pool(Player, 2) as pool:
        assert pool.submit(Player.later, 3).result(40) == 3  # type: ignore[comparison-overlap]


@remotely.remote_class
class Waiter:
    def meet(self, folder: Path) -> int:
        (folder / str(threading.get_ident())).touch()
        wait_until(lambda: len(list(folder.iterdir())) == 3, "three calls")
        return 3


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda: remotely.Pool(Player, 0), "count=0"),
        (lambda: remotely.Pool(Player, -1), "count=-1"),
        (lambda: remotely.Pool(int, 2), "int is not a remote class"),
        (lambda: remotely.Pool(Player, 1).map(lambda actor, item: item, [1]), "Executor runs"),
        (lambda: remotely.Pool(Player, 1).map(Waiter.meet, [1]), "is not a method of Player"),  # type: ignore[arg-type]
        (lambda: remotely.Pool(Player, 1).map("play", [1]), "is not a method of Player"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named(here: None, act: Callable[[], object], error: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        act()
    assert error in str(refused.value)


def test_a_pool_that_can_never_be_placed_raises(here: None) -> None:
    with pytest.raises(NoResources):
        remotely.Pool(Player, 100)


def test_an_error_in_the_block_kills_the_members(here: None, tmp_path: Path) -> None:
    pool = remotely.Pool(Player, 2)

    def work() -> Any:
        with pool:
            running.append(pool.submit(Player.wait_for, tmp_path / "never"))
            raise KeyError

    running: list[Any] = []
    with pytest.raises(KeyError):
        work()
    assert isinstance(running[0].exception(40), ActorDied)
    assert remotely.status().actors == []
    pool.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        _ = pool.submit(Player.play, 1)


def test_a_dropped_pool_ends_its_members(here: None) -> None:
    assert remotely.Pool(Player, 2).submit(Player.play, 1).result(40) == 1
    wait_until(lambda: remotely.status().actors == [], "the end of its members")


def test_a_forked_child_waits_for_nothing_of_its_parents_pools(here: None, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    with remotely.Pool(Player, 1) as pool, remotely.Executor(1) as executor:
        running = pool.submit(Player.wait_for, gate)
        results, unordered = (each(Player.play, [1]) for each in (pool.imap, pool.imap_unordered))
        executed = executor.map(wait_until, [gate.exists], ["the gate"])
        actions: list[Callable[[], object]] = [
            lambda: pool.map(Player.play, [1]),
            lambda: pool.submit(Player.play, 1).result(),
            lambda: list(executor.map(abs, [1])),
            *(functools.partial(next, each) for each in (results, unordered, executed)),
        ]
        for action in actions:
            assert re.match("NotConnected: .*forked", raised_in_a_fork(action)), action
        for give_up in (pool.close, executor.shutdown, unordered.close, executed.close):
            assert raised_in_a_fork(give_up) == "", give_up
        gate.touch()
        assert running.result(40)
        assert [*results, *unordered, *executed] == [1, 1, None]


def test_a_forked_childs_own_pool_refuses_what_is_pending_in_its_parent(
    here: None, started_here: Here
) -> None:
    pending: Any = CallFuture("a call")

    def use_own_pool() -> None:
        remotely.connect(started_here.address, key=started_here.key)
        pool = remotely.Pool(Player, 1)
        with pytest.raises(remotely.NotConnected, match="a call was pending"):
            pool.submit(Player.play, pending).result()
        pool.close()  # which waits for all its calls
        remotely.shutdown()

    assert raised_in_a_fork(use_own_pool) == ""


def test_a_pool_works_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_engine", CallEngine(InProcess()))
    with remotely.Pool(Player, 2) as pool:
        assert pool.map(Player.play, range(5)) == [0, 1, 2, 3, 4]
        assert sorted(pool.imap_unordered(Player.play, range(5))) == [0, 1, 2, 3, 4]
        me = threading.get_ident()
        assert pool.map(Player.thread, (threading.get_ident() for _ in range(2))) == [(me, me)] * 2
