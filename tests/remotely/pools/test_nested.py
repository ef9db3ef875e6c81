"""Executors, joblib and actors within each other, on fewer cores than there are levels."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

import remotely
from tests.clusters import Here, wait_until


@pytest.fixture(scope="module")
def cluster_of_one_core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    cluster = Here(tmp_path_factory.mktemp("one"), cpus=1)
    yield cluster
    cluster.stop()


@pytest.fixture
def one_core(cluster_of_one_core: Here, nothing_left: None) -> Iterator[None]:
    remotely.connect(cluster_of_one_core.address, key=cluster_of_one_core.key)
    yield
    wait_until(lambda: remotely.status().actors == [], "the end of all actors")
    (machine,) = remotely.status().machines
    assert machine.free_cpus == machine.cpus
    remotely.shutdown()


def in_executors(depth: int, width: int) -> int:
    if depth == 0:
        return 1
    with remotely.Executor() as executor:
        return sum(executor.map(in_executors, [depth - 1] * width, [width] * width))


def in_joblib(depth: int, width: int) -> int:
    joblib = pytest.importorskip("joblib")
    remotely.register_joblib()
    if depth == 0:
        return 1
    with joblib.parallel_config(backend="remotely"):
        calls = [joblib.delayed(in_joblib)(depth - 1, width) for _ in range(width)]
        return sum(joblib.Parallel(n_jobs=width)(calls))


@remotely.remote_class(cpus=1)
class Node:
    def leaves(self, depth: int, width: int) -> int:
        return in_actors(depth, width)


def in_actors(depth: int, width: int) -> int:
    if depth == 0:
        return 1
    found = 0
    for _ in range(width):
        with Node() as node:
            found += node.leaves(depth - 1, width)
    return found


@remotely.remote_class(cpus=1, concurrency=2)
class Threaded(Node):
    def leaves(self, depth: int, width: int) -> int:
        found = []
        thread = threading.Thread(target=lambda: found.append(in_actors(depth, width)))
        thread.start()
        thread.join()
        return found[0]


@remotely.remote_class(cpus=1)
class Async:
    async def leaves(self, depth: int, width: int) -> int:
        return await asyncio.to_thread(in_actors, depth, width)


def in_threads(depth: int, width: int) -> int:
    with Threaded() as node:
        return int(node.leaves(depth, width))


def in_tasks(depth: int, width: int) -> int:
    with Async() as node:
        return int(node.leaves(depth, width))


KINDS = [in_executors, in_joblib, in_actors, in_threads, in_tasks]


@pytest.mark.parametrize("kind", KINDS)
def test_nested_work_ends_on_one_core_and_returns_it(
    one_core: None, kind: Callable[[int, int], int]
) -> None:
    assert kind(2, 2) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", [in_executors, in_joblib, in_actors])
def test_nested_work_ends_on_any_number_of_levels(
    one_core: None, kind: Callable[[int, int], int]
) -> None:
    assert kind(5, 3) == 3**5
