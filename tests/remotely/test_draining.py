"""Machines that are drained while scripts use them."""

import itertools
import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import WorkerLost
from tests.clusters import Started, processes, wait_until

DRAINED, OTHER = "127.0.0.2", "127.0.0.3"


class Slow:
    def __init__(self) -> None:
        self.calls = 0

    def add(self, seconds: float = 0.0) -> int:
        time.sleep(seconds)
        self.calls += 1
        return self.calls

    def add_after(self, gate: str) -> int:
        wait_until(Path(gate).exists, "the gate")
        return self.add()

    def span(self, seconds: float) -> tuple[float, float]:
        began = time.monotonic()
        time.sleep(seconds)
        return began, time.monotonic()


Mover = remotely.remote_class(max_restarts=1)(Slow)
Stayer = remotely.remote_class(Slow)


@remotely.remote_class(max_restarts=1, concurrency=2)
class Gate:
    def __init__(self) -> None:
        self.is_open = threading.Event()

    def wait(self) -> bool:
        return self.is_open.wait(60)

    def open(self) -> None:
        self.is_open.set()


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A head without CPUs and two machines; what a test drains joins again after it."""
    cluster = Started(tmp_path_factory.mktemp("drained"), cpus=2)
    yield cluster
    cluster.stop()


@pytest.fixture
def machines(two_machines: Started) -> Iterator[Started]:
    remotely.connect(two_machines.address, key=two_machines.key)
    yield two_machines
    if not is_there():
        two_machines.join(two_machines.homes[0])
    remotely.shutdown()


def is_there() -> bool:
    return any(machine.address == DRAINED for machine in remotely.status().machines)


def drain(machines: Started, *words: str) -> str:
    port = str(machines.port)
    return machines.run(machines.home, "drain", DRAINED, *words, "--port", port)


def terminate(machines: Started) -> None:
    (worker,) = processes(str(machines.homes[0]), "remotely.worker")
    worker.send_signal(signal.SIGTERM)


def made_there(cls: type) -> Any:
    """Return an actor that was placed on the machine to be drained, but need not be there."""
    others = [remotely.options(Stayer, machine=OTHER)() for _ in range(2)]
    made = cls()
    del others
    return made


def test_an_actor_with_restarts_moves_and_none_of_its_calls_is_lost(machines: Started) -> None:
    mover = made_there(Mover)
    futures = [mover.add.submit(0.05) for _ in range(20)]
    counts: list[int] = []
    is_over = threading.Event()

    def call() -> None:
        while not is_over.is_set():
            counts.append(mover.add())

    caller = threading.Thread(target=call)
    caller.start()
    said = drain(machines)
    assert "It leaves when its actor has ended or moved, or in 10 min; 1 of 1 can move." in said
    wait_until(lambda: not is_there(), "the end of the drained machine")
    futures += [mover.add.submit() for _ in range(5)]
    is_over.set()
    caller.join()
    counts += [future.result() for future in futures]
    (actor,) = remotely.status().actors
    (machine,) = [m.address for m in remotely.status().machines if m.worker == actor.worker]
    assert machine == OTHER
    assert counts.count(1) == 2  # the next life counts anew


def test_a_call_that_another_waits_for_reaches_an_actor_that_moves(machines: Started) -> None:
    gate = made_there(Gate)
    waits = gate.wait.submit()
    drain(machines)
    opens = gate.open.submit()
    assert waits.result(30)
    opens.result(30)
    wait_until(lambda: not is_there(), "the end of the drained machine")
    gate.open()
    assert gate.wait()


def test_an_actor_stays_and_is_called_if_the_drain_of_its_machine_is_undone(
    machines: Started, tmp_path: Path
) -> None:
    mover = made_there(Mover)
    slow = mover.add_after.submit(str(tmp_path / "gate"))
    drain(machines)
    drain(machines, "--undo")
    (tmp_path / "gate").touch()
    assert (slow.result(), mover.add()) == (1, 2)


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_no_call_of_a_pool_is_lost_with_a_member_on_a_drained_machine(
    machines: Started, max_restarts: int
) -> None:
    with remotely.Pool(remotely.options(Stayer, max_restarts=max_restarts), 2) as pool:
        done = [pool.submit(Stayer.add, 0.1) for _ in range(10)]
        drain(machines, "--within", "60s")
        done += [pool.submit(Stayer.add, 0.1) for _ in range(10)]
        wait_until(lambda: not is_there(), "the end of the drained machine")
        assert [future.result() > 0 for future in done] == [True] * 20
        assert len(pool) == 1 + max_restarts
        assert max(pool.map(Stayer.add, [0.0] * 4)) > 1


def test_no_more_calls_run_at_a_time_while_the_member_of_a_pool_is_replaced(
    machines: Started,
) -> None:
    others = [remotely.options(Stayer, machine=OTHER)() for _ in range(2)]
    with remotely.Pool(Mover, 1) as pool:
        del others
        done = [pool.submit(Mover.span, 0.2) for _ in range(15)]
        drain(machines, "--within", "60s")
        wait_until(lambda: not is_there(), "the end of the drained machine")
        spans = sorted(future.result() for future in done)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_no_call_of_an_executor_is_lost_with_a_process_on_a_drained_machine(
    machines: Started,
) -> None:
    with remotely.Executor() as executor:
        done = [executor.submit(time.sleep, 0.1) for _ in range(20)]
        wait_until(lambda: len(remotely.status().actors) == 4, "a process on each core")
        drain(machines, "--within", "60s")
        done += [executor.submit(time.sleep, 0.1) for _ in range(10)]
        wait_until(lambda: not is_there(), "the end of the drained machine")
        assert [future.result() for future in done] == [None] * 30


def test_what_happened_is_shown_with_times(machines: Started) -> None:
    said = drain(machines)
    assert "nothing new is placed there, and it leaves now" in said
    wait_until(lambda: not is_there(), "the end of the drained machine")
    command = ("events", "--port", str(machines.port))
    shown = machines.run(machines.home, *command)
    joined = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  joined     .* has joined with 2 CPUs"
    assert re.search(joined, shown)
    lines = machines.run(machines.home, *command, "--json").splitlines()
    *_, before, last = [json.loads(line) for line in lines]
    assert (before["kind"], last["kind"]) == ("draining", "drained")
    assert abs(last["at"] - time.time()) < 60


def test_another_actor_finishes_its_work_and_the_machine_leaves_when_it_ends(
    machines: Started,
) -> None:
    stayer = made_there(Stayer)
    slow = stayer.add.submit(1.0)
    drain(machines)
    (state,) = [m for m in remotely.status().machines if m.drains_s]
    assert (state.address, state.free_cpus) == (DRAINED, 0)
    assert "DRAINING 10 min" in machines.run(machines.home, "status", "--port", str(machines.port))
    assert slow.result() == 1
    assert stayer.add() == 2
    assert is_there()
    del stayer, slow
    wait_until(lambda: not is_there(), "the end of the drained machine")


def test_what_still_runs_when_the_time_is_up_is_lost_and_says_why(machines: Started) -> None:
    stayer = made_there(Stayer)
    slow = stayer.add.submit(60.0)
    begun = time.monotonic()
    drain(machines, "--within", "3s")
    with pytest.raises(WorkerLost, match="it was drained") as raised:
        slow.result()
    assert raised.value.may_have_run
    assert time.monotonic() < begun + 30  # long before the call would have ended


def test_after_sigterm_a_call_that_runs_finishes(machines: Started) -> None:
    stayer = made_there(Stayer)
    slow = stayer.add.submit(2.0)
    terminate(machines)
    wait_until(lambda: any(m.drains_s for m in remotely.status().machines), "that it is drained")
    assert slow.result() == 1
    del stayer, slow
    wait_until(lambda: not is_there(), "the end of the drained machine")


def test_a_second_sigterm_ends_a_worker_at_once_and_the_first_cannot_be_undone(
    machines: Started,
) -> None:
    stayer = made_there(Stayer)
    slow = stayer.add.submit(60.0)
    terminate(machines)
    wait_until(lambda: any(m.drains_s for m in remotely.status().machines), "that it is drained")
    with pytest.raises(AssertionError, match=r"cannot stay: its worker was sent SIGTERM"):
        drain(machines, "--undo")
    terminate(machines)
    with pytest.raises(WorkerLost, match="it was drained"):
        slow.result()


def test_a_machine_whose_drain_is_undone_gets_actors_again(machines: Started) -> None:
    stayer = made_there(Stayer)
    drain(machines)
    assert "is used as before" in drain(machines, "--undo")
    del stayer
    assert remotely.options(Stayer, machine=DRAINED)().add() == 1
