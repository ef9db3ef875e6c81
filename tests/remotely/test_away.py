"""Machines and masters that are away for a moment: requests wait for their return."""

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import remotely
from remotely.client import channels
from remotely.client.carrier import client_of
from remotely.protocol.control import Status
from tests.clusters import Started, freeze, processes, wait_until
from tests.remotely.counter import Counter


@remotely.remote_class
class Repeated:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    @remotely.idempotent(retries=1)
    def repeat(self) -> int:
        return self.add()


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A head without CPUs and two machines; each test restarts what it has killed."""
    cluster = Started(tmp_path_factory.mktemp("away"))
    yield cluster
    cluster.stop()


@pytest.fixture
def machines(two_machines: Started) -> Iterator[Started]:
    remotely.connect(two_machines.address, key=two_machines.key)
    yield two_machines
    remotely.shutdown()
    wait_until(lambda: len(status(two_machines).workers) == 3, "the return of both workers")


def daemons(home: Path, module: str) -> list[int]:
    return [process.pid for process in processes(str(home), module)]


def status(machines: Started) -> Status:
    client = client_of(machines.address, machines.key)
    try:
        return client.status()
    finally:
        client.shutdown()


def test_actors_are_placed_elsewhere_when_a_worker_was_killed(
    machines: Started,
) -> None:
    (killed,) = daemons(machines.homes[0], "remotely.worker")
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not processes(str(machines.homes[0])), "the end of a killed worker")

    counters = remotely.group(Counter, 4)

    assert counters.add() == [1, 1, 1, 1]
    assert len(status(machines).workers) == 3  # its lease has not ended yet
    machines.join(machines.homes[0])


def test_a_killed_worker_rejoins_at_once_and_its_actors_are_restarted(
    machines: Started,
) -> None:
    counter = remotely.options(Counter, machine="127.0.0.2", max_restarts=1)()
    last = psutil.Process(counter.pid())
    (worker,) = daemons(machines.homes[0], "remotely.worker")
    (zygote,) = daemons(machines.homes[0], "remotely.actor.zygote")
    last.suspend()  # so that it does not notice
    for pid in (zygote, worker):
        os.kill(pid, signal.SIGKILL)

    machines.join(machines.homes[0])

    assert not last.is_running() or last.status() == psutil.STATUS_ZOMBIE
    assert len(status(machines).workers) == 3

    def lives() -> list[int]:
        return [actor.request.life for w in status(machines).workers for actor in w.actors]

    wait_until(lambda: lives() == [1], "its restart")
    assert counter.add() == 1


def test_calls_wait_for_a_killed_workers_machine_without_using_up_retries(
    machines: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "OBITUARY_WAIT_S", 0.05)
    counter = remotely.options(Repeated, machine="127.0.0.2", max_restarts=1)()
    (worker,) = daemons(machines.homes[0], "remotely.worker")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: counter._remotely_remote.channel.ended, "the end of the connection")

    repeated = counter.repeat.submit()
    submitted = counter.add.submit()
    with pytest.raises(remotely.CallTimeout):
        repeated.result(0.5)
    assert not submitted.done()
    machines.join(machines.homes[0])

    assert [repeated.result(), submitted.result()] == [1, 2]


def test_actors_of_a_leaving_machine_are_lost_or_restarted_elsewhere(machines: Started) -> None:
    counters = [remotely.options(Counter, max_restarts=n // 2)() for n in range(4)]
    homes = [psutil.Process(counter.pid()).environ()["REMOTELY_HOME"] for counter in counters]
    (leaving,) = set(homes[:2]) & set(homes[2:]) - {homes[0]}

    machines.run(Path(leaving), "stop", "--port", str(machines.port))

    for n, (counter, home) in enumerate(zip(counters, homes, strict=True)):
        if home != leaving:
            assert counter.add() == 1
        elif n // 2:
            with contextlib.suppress(remotely.WorkerLost):  # if the call precedes the restart
                counter.pid()
            assert psutil.Process(counter.pid()).environ()["REMOTELY_HOME"] != leaving
        else:
            with pytest.raises(remotely.WorkerLost, match="its worker was stopped"):
                counter.add()
    machines.join(Path(leaving))


def test_a_new_master_answers_once_its_workers_have_registered(machines: Started) -> None:
    store = remotely.options(Counter, name="store", detached=True)()
    pid = store.pid()
    workers = [pid for home in machines.homes for pid in daemons(home, "remotely.worker")]
    for worker in workers:
        freeze(worker)
    (master,) = daemons(machines.home, "remotely.master")
    os.kill(master, signal.SIGKILL)
    machines.run(machines.home, "start", "--port", str(machines.port), "--cpus", "0")

    with ThreadPoolExecutor() as script:
        found = script.submit(lambda: remotely.get_actor("store").pid())
        second = script.submit(lambda: remotely.options(Counter, name="store")().pid())
        other = script.submit(lambda: Counter().add())
        wait_until(lambda: status(machines).waiting == 1, "a request that waits for a machine")
        for worker in workers:
            os.kill(worker, signal.SIGCONT)

        assert found.result() == pid
        assert isinstance(second.exception(), remotely.NameTaken)
        assert other.result() == 1
    remotely.close(store)


def test_an_actor_that_died_without_a_master_is_restarted_by_the_next(machines: Started) -> None:
    counter = remotely.options(Counter, max_restarts=1)()
    assert counter.add() == 1
    (master,) = daemons(machines.home, "remotely.master")
    os.kill(master, signal.SIGKILL)
    wait_until(lambda: not daemons(machines.home, "remotely.master"), "the end of the master")
    died = counter.pid()
    os.kill(died, signal.SIGKILL)
    with pytest.raises((remotely.ActorDied, remotely.WorkerLost)):
        counter.add()

    machines.run(machines.home, "start", "--port", str(machines.port), "--cpus", "0")

    assert not list(machines.home.rglob("*.killed"))
    assert counter.pid() != died
    assert counter.add() == 1
