"""Large values between machines: each is sent once per machine, and results stay where they are.

The machines are the two workers of `joined` (conftest.py).
"""

import asyncio
import concurrent.futures
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import remotely
from remotely import ActorDied, CallTimeout, NotConnected, SharedArray, WorkerLost
from remotely.calling import back_pressure
from remotely.client.bulk_transfer import MAX_THREADS, BulkTransfer, RemoteValue, Stores
from remotely.transport import bulk
from remotely.transport.bulk import Connection
from remotely.values import in_transit
from remotely.values.payload import Parcel
from tests.clusters import Started, processes, wait_until

Array = np.ndarray[Any, Any]
SIZE = 500_000  # numbers: 4 MB


@remotely.remote_class
class Peer:
    def __init__(self, value: Any = None) -> None:
        self.seen: list[Any] = []
        self.value = value

    def first(self) -> float:
        return float(self.value[0])

    def echo(self, value: Any) -> Any:
        return value

    def total(self, value: Array, more: Any = None) -> float:
        return float(value.sum())

    def make(self, size: int, value: float = 1.0) -> Array:
        return np.full(size, value)

    def note(self, value: Any) -> None:
        self.seen.append(value if isinstance(value, int) else float(value[0]))

    @remotely.timeout(0.3)
    def limited(self, value: Any) -> None:
        self.note(value)

    def noted(self) -> list[Any]:
        return self.seen

    def write(self, value: Array) -> float:
        value += 1
        return float(value[0])

    def host(self) -> str:
        return os.environ["REMOTELY_HOST"]

    def make_shared(self, size: int) -> tuple[Any, Array]:
        shared = SharedArray(3)
        shared.array[:] = 7
        return shared, np.ones(size)

    def first_of_shared(self, value: tuple[Any, Array]) -> float:
        return float(value[0].array[0])

    def forget_in_transit(self) -> None:
        in_transit.forget()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pid(self) -> int:
        return os.getpid()


@remotely.remote_class
class Caller:
    """An actor that calls others, with its own key."""

    def pass_on(self, other: Any, value: Array) -> float:
        return float(other.total(value))

    def fetch(self, other: Any) -> float:
        return float(other.make(SIZE, 2.0).sum())

    def noted_by(self, other: Any) -> Any:
        return other.noted()

    def connect(self, one: Any, two: Any) -> float:
        return float(two.total.submit(one.make.submit(SIZE)).result())

    def host(self) -> str:
        return os.environ["REMOTELY_HOST"]


@remotely.remote_class
class Awaiter:
    def __init__(self) -> None:
        self.seen: list[float] = []

    async def total(self, value: Array) -> float:
        self.seen.append(float(value.sum()))
        return self.seen[-1]

    async def noted(self) -> list[float]:
        return self.seen

    async def host(self) -> str:
        return os.environ["REMOTELY_HOST"]

    async def make(self, size: int) -> Array:
        return np.ones(size)


@remotely.remote_class
class Holder:
    def make(self) -> Array:
        return np.ones(SIZE)

    def lent(self) -> int:
        from remotely.values import arena

        memory = arena.ours()
        return memory.lent_bytes if memory else 0


class Counted:
    """The bytes that this process has sent and received over TLS."""

    def __init__(self) -> None:
        self.pushed = 0
        self.pulled = 0


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    push, pull = Connection.push, Connection.pull

    def counted_push(self: Connection, value: bytes, start: int, nbytes: int, *rest: Any) -> None:
        counted.pushed += nbytes
        push(self, value, start, nbytes, *rest)

    def counted_pull(self: Connection, value: bytes, start: int, memory: memoryview) -> None:
        counted.pulled += memory.nbytes
        pull(self, value, start, memory)

    monkeypatch.setattr(Connection, "push", counted_push)
    monkeypatch.setattr(Connection, "pull", counted_pull)
    return counted


@pytest.fixture
def joined(started: Started, nothing_left: None) -> Iterator[Started]:
    remotely.connect(started.address, key=started.key)
    yield started
    remotely.shutdown()


def on_each(group: Any) -> tuple[Any, Any]:
    """Return two members that are on different machines."""
    by_host = dict(zip(group.host(), group, strict=True))
    one, two = by_host.values()
    return one, two


def end_stores(cluster: Started) -> None:
    for pid in stores(cluster):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not stores(cluster), "the end of all stores")


def stores(cluster: Started) -> list[int]:
    return [
        process.pid for home in cluster.homes for process in processes(str(home), "remotely.store")
    ]


def test_an_array_is_sent_and_returned(joined: Started, moved: Counted) -> None:
    peer = Peer()
    array = np.arange(SIZE, dtype=np.float64)

    back = peer.echo(array)

    assert np.array_equal(back, array)
    assert back.flags.writeable
    assert array.nbytes <= moved.pushed < 1.01 * array.nbytes
    assert array.nbytes <= moved.pulled < 1.01 * array.nbytes


def test_an_argument_of_a_group_leaves_this_machine_once(joined: Started, moved: Counted) -> None:
    group = remotely.group(Peer, 4)
    array = np.ones(SIZE)

    assert group.total(array) == [SIZE] * 4

    assert len(set(group.host())) == 2
    assert moved.pushed < 1.01 * array.nbytes


def test_a_constructor_argument_of_a_group_is_sent_once_per_machine(
    joined: Started, moved: Counted
) -> None:
    array = np.full(SIZE, 3.0)
    group = remotely.group(Peer, 4, array)
    assert group.first() == [3.0] * 4
    assert moved.pushed < 2.02 * array.nbytes


def test_a_put_value_leaves_this_machine_once(joined: Started, moved: Counted) -> None:
    group = remotely.group(Peer, 4)
    ref = remotely.put(np.ones(SIZE))

    for _ in range(3):
        assert group.total(ref) == [SIZE] * 4
        assert group[0].total({"x": ref}["x"], more=[ref]) == SIZE

    assert moved.pushed < 1.01 * 8 * SIZE
    assert float(remotely.get(ref).sum()) == SIZE


def test_a_put_value_is_sent_once_per_machine_to_the_jobs_of_a_pool(
    joined: Started, moved: Counted
) -> None:
    with remotely.Pool(Peer, 4) as pool:
        ref = remotely.put(np.ones(SIZE))
        assert pool.map(Peer.total, [ref] * 8) == [SIZE] * 8
        assert len(set(pool.actors.host())) == 2
    assert moved.pushed < 2.02 * 8 * SIZE


def test_a_put_value_reaches_machines_that_use_it_one_after_the_other(joined: Started) -> None:
    """It was sent to each of them separately, and has a different name in each store."""
    one, _ = on_each(remotely.group(Peer, 2))
    ref = remotely.put(np.ones(SIZE))
    assert one.total(ref) == SIZE
    assert remotely.group(Peer, 4).total(ref) == [SIZE] * 4


def test_a_put_value_is_sent_again_to_a_restarted_store(joined: Started, moved: Counted) -> None:
    peer = Peer()
    ref = remotely.put(np.ones(SIZE))
    assert peer.total(ref) == SIZE
    for pid in stores(joined):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: peer.total(np.ones(SIZE)) == SIZE and moved.pushed >= 16 * SIZE, "a store")
    moved.pushed = 0

    for _ in range(4):
        assert peer.total(ref) == SIZE

    assert 8 * SIZE <= moved.pushed < 1.01 * 8 * SIZE


def test_each_actor_gets_a_private_copy(joined: Started) -> None:
    group = remotely.group(Peer, 4)
    array = np.zeros(SIZE)
    assert group.write(array) == [1.0] * 4
    assert group.write(array) == [1.0] * 4
    assert array[0] == 0.0


def test_large_and_small_calls_run_in_the_order_made(joined: Started) -> None:
    peer = Peer()
    futures = []
    for i in range(20):
        value: Any = np.full(SIZE, float(i)) if i % 3 == 0 else i
        futures.append(peer.note.submit(value))
    assert peer.noted() == list(range(20))
    assert [future.result() for future in futures] == [None] * 20


def test_actors_exchange_large_values_with_their_own_keys(joined: Started) -> None:
    peers = on_each(remotely.group(Peer, 2))
    callers = on_each(remotely.group(Caller, 2))
    for caller in callers:
        for peer in peers:
            assert caller.pass_on(peer, np.ones(SIZE)) == SIZE
            assert caller.fetch(peer) == 2 * SIZE
        assert caller.connect(*peers) == SIZE


def test_async_and_threaded_actors_exchange_large_values(joined: Started) -> None:
    array = np.ones(SIZE)
    awaiter: Any = Awaiter()
    threads: Any = remotely.options(Peer, concurrency=4)()
    for _ in range(2):
        totals = [actor.total.submit(array) for actor in (awaiter, threads) for _ in range(6)]
        made = [actor.make.submit(SIZE) for actor in (awaiter, threads) for _ in range(6)]
        assert [future.result() for future in totals] == [SIZE] * 12
        assert [float(future.result().sum()) for future in made] == [SIZE] * 12


def test_a_future_goes_directly_from_actor_to_actor(joined: Started, moved: Counted) -> None:
    one, two = on_each(remotely.group(Peer, 2))

    made = one.make.submit(SIZE, 2.0)
    total = two.total.submit(made)

    assert total.result() == 2 * SIZE
    assert two.total(one.make.submit(SIZE)) == SIZE
    assert (moved.pushed, moved.pulled) == (0, 0)
    assert float(made.result()[0]) == 2.0  # it was still in the store


def test_a_future_is_sent_once_per_machine_and_not_to_its_own(
    joined: Started, moved: Counted
) -> None:
    group = remotely.group(Peer, 4)
    ref = remotely.ref(group[0].make.submit(SIZE))

    assert group.total(ref) == [SIZE] * 4
    assert group.total([ref][0], more={"deep": [ref]}) == [SIZE] * 4
    assert (moved.pushed, moved.pulled) == (0, 0)
    assert float(remotely.get(ref).sum()) == SIZE
    assert 8 * SIZE <= moved.pulled < 1.01 * 8 * SIZE


def test_small_results_and_fetched_results_are_sent_as_values(joined: Started) -> None:
    one, two = on_each(remotely.group(Peer, 2))
    here = one.make.submit(SIZE)
    here.result()
    assert two.total(here) == SIZE
    assert two.total(one.make.submit(3)) == 3


@pytest.mark.parametrize("passed_on", [False, True])
@pytest.mark.parametrize("end", [remotely.close, remotely.kill])
def test_a_result_outlives_its_actor(
    joined: Started, monkeypatch: pytest.MonkeyPatch, end: Any, passed_on: bool
) -> None:
    one, two = on_each(remotely.group(Peer, 2))
    pid, fetch = one.pid(), Stores.fetch

    fetches = threading.Event()

    def fetch_late(self: Stores, wanted: RemoteValue) -> Any:
        fetches.set()
        wait_until(lambda: not psutil.pid_exists(pid), "the end of the actor")
        return fetch(self, wanted)

    monkeypatch.setattr(Stores, "fetch", fetch_late)
    made = one.make.submit(SIZE)
    if passed_on:
        ref = remotely.ref(made)
        made.exception()  # it is done, and stays in the store
    elif end is remotely.kill:
        made.add_done_callback(lambda _: None)
        assert fetches.wait(40)
    end(one)

    wait_until(lambda: not psutil.pid_exists(pid), "the end of the actor")
    assert (two.total(ref) if passed_on else made.result().sum()) == SIZE


def test_a_result_outlives_its_store(
    joined: Started,
) -> None:
    one, _ = on_each(remotely.group(Peer, 2))
    made = one.make.submit(SIZE)
    ref = remotely.ref(made)
    made.exception()  # it is done, and stays in the store
    end_stores(joined)
    assert one.host()  # the actor may have checked meanwhile which results were fetched
    assert remotely.get(ref).sum() == SIZE


def test_a_result_is_lost_with_both_its_actor_and_its_store(
    joined: Started,
) -> None:
    one, two = on_each(remotely.group(Peer, 2))
    made = one.make.submit(SIZE)
    ref = remotely.ref(made)
    made.exception()  # it is done, and stays in the store

    remotely.kill(one)
    end_stores(joined)

    with pytest.raises(WorkerLost, match=r"result of Peer-\d+\.make is lost") as lost:
        two.total(ref)
    assert not lost.value.may_have_run
    with pytest.raises(WorkerLost, match=r"result of Peer-\d+\.make is lost"):
        remotely.get(ref)


def test_a_result_is_freed_with_the_last_reference(joined: Started) -> None:
    peer = Peer()
    for _ in range(12):  # 12 times 40 MB
        future = peer.make.submit(10 * SIZE)
        future.is_passed_on = True
        future.exception()
        del future
    wait_until(lambda: lent_by(joined) < 300 << 20, "the end of unreferenced results")


def lent_by(cluster: Started) -> int:
    """Return the resident memory of all actors, with their arenas."""
    return sum(actor.rss for actor in remotely.status().actors)


def test_a_result_that_was_sent_inline_after_a_failed_fetch_is_freed(
    joined: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Stores, wanted: Parcel) -> Any:
        refused.append(wanted)
        raise ConnectionRefusedError("a firewall")

    refused: list[Parcel] = []
    holder = Holder()
    monkeypatch.setattr(Stores, "fetch", refuse)
    assert holder.make().sum() == SIZE
    assert refused
    wait_until(lambda: holder.lent() == 0, "the end of what was sent inline")


def test_a_result_whose_caller_was_killed_is_freed(joined: Started, tmp_path: Path) -> None:
    holder = remotely.options(Holder, name="holder", detached=True)()
    script = tmp_path / "leaves.py"
    script.write_text(
        "import os, sys, remotely\n"
        "remotely.connect(sys.argv[1], key=sys.argv[2])\n"
        "made = remotely.get_actor('holder').make.submit()\n"
        "remotely.ref(made)\n"
        "made.exception()\n"
        "print('has it', type(made.raw_result).__name__, flush=True)\n"
        "os._exit(1)\n"
    )
    command = [sys.executable, str(script), joined.address, str(joined.key)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "has it StoredResult\n", done.stderr

    wait_until(lambda: holder.lent() == 0, "the end of a result without a caller")
    remotely.close(holder)


def test_a_done_callback_may_call_with_large_values_and_wait(joined: Started) -> None:
    """It runs on the thread that receives from stores."""
    one, two = on_each(remotely.group(Peer, 2))
    got: list[float] = []

    def call_again(future: Any) -> None:
        got.append(two.total(np.ones(SIZE)))
        got.append(float(two.echo(np.ones(SIZE)).sum()))
        got.append(two.total(future))

    one.make.submit(3).add_done_callback(call_again)
    wait_until(lambda: got == [SIZE, SIZE, 3.0], "calls of a callback")


def test_a_call_that_waits_at_shutdown_fails_with_an_error(joined: Started) -> None:
    one, two = on_each(remotely.group(Peer, 2))
    never = one.sleep.submit(60)
    waiting = two.note.submit(never)

    remotely.shutdown()

    assert isinstance(waiting.exception(timeout=40), remotely.RemotelyError)


def test_results_that_are_being_fetched_at_shutdown_have_an_outcome(
    joined: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, begun, fetch = threading.Event(), threading.Semaphore(0), Stores.fetch

    def fetch_late(self: Stores, wanted: RemoteValue) -> Any:
        begun.release()
        ended.wait(40)
        return fetch(self, wanted)

    def note(self: Stores, *given: Any) -> None:
        fetch_in_background(self, *given)
        asked.append(given)

    asked: list[Any] = []
    fetch_in_background = Stores.fetch_in_background
    monkeypatch.setattr(Stores, "fetch", fetch_late)
    monkeypatch.setattr(Stores, "fetch_in_background", note)
    peer = Peer()
    futures = [peer.make.submit(SIZE) for _ in range(MAX_THREADS + 4)]
    for future in futures:
        future.add_done_callback(lambda _: None)  # have them received as they come
    for _ in range(MAX_THREADS):
        assert begun.acquire(timeout=40)
    wait_until(lambda: len(asked) == len(futures), "fetches that wait for a thread")

    remotely.shutdown()

    waited = [future for future in futures if future.done()]
    assert len(waited) == 4
    for future in waited:
        with pytest.raises(NotConnected):
            future.result()
    ended.set()
    concurrent.futures.wait(futures, timeout=40)
    assert all(future.done() for future in futures)


def test_calls_are_sent_inline_after_any_error_of_a_transfer(
    joined: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(nbytes: int, move: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(bulk, "in_stripes", fail)
    peer = Peer()
    assert peer.total(np.ones(SIZE)) == SIZE
    assert peer.total.submit(np.ones(SIZE)).result() == SIZE
    assert peer.make(SIZE).shape == (SIZE,)


def test_the_timeout_of_a_call_includes_the_transfer_of_its_arguments(
    joined: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, ended, push = Peer(), threading.Event(), Connection.push

    def push_late(self: Connection, *given: Any) -> None:
        ended.wait(40)
        push(self, *given)

    monkeypatch.setattr(Connection, "push", push_late)
    with pytest.raises(CallTimeout, match="was cancelled") as late:
        peer.limited(np.full(SIZE, 7.0))
    assert not ended.is_set()
    assert not late.value.still_running
    ended.set()
    assert peer.noted() == []


def test_calls_that_are_never_sent_release_their_back_pressure(joined: Started) -> None:
    """Otherwise each would reduce the limit of pending calls of the process for good."""
    limits = back_pressure.limits
    array = np.ones(SIZE)
    one, two = on_each(remotely.group(Peer, 2))
    for peer in (one, two):
        assert peer.total(array) == SIZE
    never = one.sleep.submit(60)

    waiting = [two.total.submit(value) for value in (never, *[array] * 4)]
    assert limits.taken_bytes
    assert [future.cancel() for future in waiting[1:3]] == [True, True]
    remotely.kill(two)
    remotely.kill(one)

    assert isinstance(waiting[0].exception(40), ActorDied)
    assert all(isinstance(future.exception(40), ActorDied) for future in waiting[3:])
    assert limits.taken_bytes == 0


def test_a_callback_gets_the_value(joined: Started) -> None:
    one, two = on_each(remotely.group(Peer, 2))
    got: list[float] = []
    made = one.make.submit(SIZE)
    made.add_done_callback(lambda future: got.append(float(future.result().sum())))
    assert two.total(made) == SIZE
    wait_until(lambda: got == [SIZE], "the callback")


def test_values_are_sent_inline_with_one_warning_if_the_bulk_port_is_closed(
    joined: Started, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> socket.socket:
        raise ConnectionRefusedError("closed by a firewall")

    def fetch(self: Stores, wanted: RemoteValue) -> Any:
        fetched.append(wanted.parcel)
        return real_fetch(self, wanted)

    fetched: list[Parcel] = []
    real_fetch = Stores.fetch
    monkeypatch.setattr(Stores, "fetch", fetch)
    monkeypatch.setattr(socket, "create_connection", refused)
    group = remotely.group(Peer, 2)
    array = np.ones(SIZE)
    with caplog.at_level(logging.WARNING, "remotely"):
        for _ in range(3):
            assert group.total(array) == [SIZE, SIZE]
            assert [float(back.sum()) for back in group.echo(array)] == [SIZE, SIZE]
    warnings = [record.getMessage() for record in caplog.records]
    assert 1 <= len(warnings) <= 4
    assert len(warnings) == len(set(warnings))
    assert all("closed by a firewall" in line and "port" in line for line in warnings)
    assert len(fetched) <= 2, "the actors know by then that results must be sent inline"


def test_a_killed_store_is_restarted_and_no_call_is_lost(joined: Started) -> None:
    group = remotely.group(Peer, 2)
    array = np.ones(SIZE)
    assert group.total(array) == [SIZE] * 2
    for pid in stores(joined):
        os.kill(pid, signal.SIGKILL)

    outcomes = []
    for _ in range(5):
        try:
            outcomes.append(group.total(array) == [SIZE] * 2)
        except WorkerLost as error:
            outcomes.append(not error.may_have_run)

    assert all(outcomes)
    wait_until(lambda: group.total(array) == [SIZE] * 2 and len(stores(joined)) == 2, "new stores")


def test_a_relay_that_stops_midway_loses_no_call(
    joined: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = remotely.group(Peer, 2)
    array = np.ones(20 * SIZE)
    assert group.total(np.ones(SIZE)) == [SIZE] * 2
    first = stores(joined)
    routes: list[bytes] = []
    push = Connection.push

    def push_and_kill(
        self: Connection, value: bytes, start: int, nbytes: int, parts: Any, onward: bytes
    ) -> None:
        routes.append(onward)
        if len(routes) == 1:
            os.kill(first[0], signal.SIGKILL)
        push(self, value, start, nbytes, parts, onward)

    monkeypatch.setattr(Connection, "push", push_and_kill)
    assert group.total(array) == [20 * SIZE] * 2
    assert routes[0]


def test_a_store_holds_nothing_after_the_calls(joined: Started) -> None:
    group = remotely.group(Peer, 2)
    before = {pid: rss_of(pid) for pid in stores(joined)}
    for _ in range(6):  # 6 times 40 MB
        group.total(np.ones(10 * SIZE))
    for pid in stores(joined):
        assert rss_of(pid) - before.get(pid, 0) < 160 << 20


def rss_of(pid: int) -> int:
    words = Path(f"/proc/{pid}/statm").read_text().split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_parts_of_a_result_in_a_store_live_as_long_as_the_result(joined: Started) -> None:
    maker, *others = remotely.group(Peer, 4)
    near = next(other for other in others if other.host() == maker.host())
    ref = remotely.ref(maker.make_shared.submit(SIZE))
    maker.forget_in_transit()  # as after a minute
    assert near.first_of_shared(ref) == 7


def test_a_call_with_a_ref_waits_only_for_its_own_machine(
    joined: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = on_each(remotely.group(Peer, 2))
    ref = remotely.put(np.ones(SIZE))
    run, may_go, held_up = BulkTransfer.run, threading.Event(), threading.Event()

    def run_first_late(self: BulkTransfer) -> None:
        if not held_up.is_set():
            held_up.set()
            may_go.wait(40)
        run(self)

    monkeypatch.setattr(BulkTransfer, "run", run_first_late)
    late = two.total.submit(ref)
    assert held_up.wait(40)
    assert one.total.submit(ref).result(40) == SIZE
    assert not late.done()
    may_go.set()
    assert late.result() == SIZE


def test_a_stopped_store_is_not_blamed_on_ports_and_delays_no_other_machine(
    joined: Started, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = on_each(remotely.group(Peer, 2))
    array = np.ones(SIZE)
    assert [peer.total(array) for peer in (one, two)] == [SIZE] * 2
    home = joined.homes[["one", "two"].index(one.host())]
    (store,) = processes(str(home), "remotely.store")
    store.suspend()
    try:
        late = [one.total.submit(array) for _ in range(MAX_THREADS + 1)]
        assert two.total.submit(array).result(40) == SIZE
        assert not any(future.done() for future in late)
        wait_until(lambda: caplog.records, "a warning")
    finally:
        store.resume()
    assert [future.result(40) for future in late] == [SIZE] * len(late)
    warnings = [record.getMessage() for record in caplog.records]
    assert all("stopped or busy" in text and "ports" not in text for text in warnings)


def test_an_event_loop_goes_on_while_it_awaits_a_result_that_was_passed_on(
    joined: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = on_each(remotely.group(Peer, 2))
    may_go, begun, fetch = threading.Event(), threading.Event(), Stores.fetch

    def fetch_late(self: Stores, wanted: RemoteValue) -> Any:
        begun.set()
        assert may_go.wait(40)
        return fetch(self, wanted)

    async def await_it(future: Any) -> float:
        waiting = asyncio.ensure_future(future)
        while not begun.is_set():
            await asyncio.sleep(0.001)
        assert not waiting.done()
        may_go.set()
        return float((await waiting).sum())

    made = one.make.submit(SIZE)
    assert two.total(made) == SIZE
    monkeypatch.setattr(Stores, "fetch", fetch_late)
    assert asyncio.run(await_it(made)) == SIZE


def stopped_store(cluster: Started, host: str) -> psutil.Process:
    """Stop the store of a machine, which has one."""
    home = cluster.homes[["one", "two"].index(host)]
    (store,) = processes(str(home), "remotely.store")
    store.suspend()
    return store


def test_an_event_loop_goes_on_while_an_argument_is_fetched_from_another_machine(
    joined: Started,
) -> None:
    one, two = on_each(remotely.group(Awaiter, 2))
    caller = Caller()
    made = one.make.submit(SIZE)
    remotely.ref(made)  # so it stays on its machine
    assert made.exception() is None
    assert two.total(np.zeros(SIZE)) == 0.0
    store = stopped_store(joined, one.host())
    try:
        late = two.total.submit(made)
        after = two.noted.submit()
        assert caller.noted_by.submit(two).result(40) == [0.0]
        assert not late.done()
        assert not after.done()
    finally:
        store.resume()
    assert late.result(40) == SIZE
    assert after.result(40) == [0.0, SIZE], "the calls of a client run in their order"


def test_a_stopped_store_delays_no_other_member_of_a_group(
    joined: Started, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = group = remotely.group(Peer, 2)
    array = np.ones(SIZE)
    assert group.total(array) == [SIZE] * 2
    store = stopped_store(joined, one.host())
    try:
        late, other = group.total.submit(array)
        assert other.result(40) == SIZE
        assert not caplog.records, "the store may answer yet"
        assert group.total(array) == [SIZE] * 2
        assert late.result(40) == SIZE
        wait_until(lambda: caplog.records, "the warning about the stopped store")
    finally:
        store.resume()
    assert one.host() != two.host()
