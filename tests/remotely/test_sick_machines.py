"""Machines on which actors cannot be started, beside one on which they can."""

import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import remotely
from remotely.reporting.cluster_status import MachineStatus
from tests.clusters import Started, processes, wait_until
from tests.remotely.counter import Counter

SICK = "127.0.0.2"


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """A head without CPUs and two machines; each test heals what it has made sick."""
    cluster = Started(tmp_path_factory.mktemp("sick"))
    yield cluster
    cluster.stop()


@pytest.fixture
def machines(two_machines: Started) -> Iterator[Started]:
    remotely.connect(two_machines.address, key=two_machines.key)
    yield two_machines
    remotely.shutdown()


def worker_of(machines: Started) -> psutil.Process:
    (found,) = processes(str(machines.homes[0]), "remotely.worker")
    return found


def state_of(machine: str) -> MachineStatus:
    (found,) = [m for m in remotely.status().machines if m.address == machine]
    return found


def folder_of(worker: psutil.Process) -> Path:
    (zygote,) = [p for p in worker.children() if "remotely.actor.zygote" in p.cmdline()]
    return Path(zygote.cmdline()[-2])


def starts_elsewhere_until_it_is_well(heal: Callable[[], object]) -> None:
    counters = [Counter() for _ in range(6)]
    assert [counter.add() for counter in counters] == [1] * 6
    sick = state_of(SICK)
    assert sick.sick
    assert not any(a.worker == sick.worker for a in remotely.status().actors)
    heal()
    del counters

    def is_well() -> bool:
        Counter().add()
        return not state_of(SICK).sick

    wait_until(is_well, "its recovery")


def test_actors_are_started_elsewhere_when_the_folder_of_a_worker_is_gone(
    machines: Started, tmp_path: Path
) -> None:
    folder, kept = folder_of(worker_of(machines)), tmp_path / "kept"
    shutil.move(folder, kept)
    starts_elsewhere_until_it_is_well(lambda: shutil.move(kept, folder))


def test_actors_are_started_elsewhere_when_a_worker_has_no_descriptors(machines: Started) -> None:
    worker = worker_of(machines)
    before = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (worker.num_fds() + 3, before[1]))
    starts_elsewhere_until_it_is_well(
        lambda: resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, before)
    )
