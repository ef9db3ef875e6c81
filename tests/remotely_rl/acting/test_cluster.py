"""Tests of connecting to a cluster for training."""

import threading

import pytest

import remotely
from remotely_rl.acting import cluster
from remotely_rl.errors import TrainingError


def test_an_existing_cluster_is_used_instead_of_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str | None, int | None]] = []
    monkeypatch.setattr(
        remotely, "connect", lambda address, cpus=None: asked.append((address, cpus))
    )
    monkeypatch.setattr(cluster.connection, "current", lambda: cluster)
    monkeypatch.setattr(remotely, "is_connected", lambda: True)
    cluster.connect(4)
    monkeypatch.setattr(remotely, "is_connected", lambda: False)
    monkeypatch.setenv("REMOTELY_ADDRESS", "127.0.0.1:8010")
    cluster.connect(4)
    assert asked == [("127.0.0.1:8010", None)]
    monkeypatch.delenv("REMOTELY_ADDRESS")
    cluster.connect(400)
    assert asked[1:] == [(None, 400)]
    monkeypatch.setattr(cluster.this_machine, "cores", lambda: 3)
    cluster.connect(0)  # as many actors as there is room for
    assert asked[2:] == [(None, 3)]


def test_runs_in_several_threads_share_the_cluster_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[int] = []
    other = threading.Thread(target=cluster.connect, args=(4,))

    def connect(address: str | None, cpus: int) -> None:
        if threading.current_thread() is not other:
            other.start()
            other.join(0.05)  # it would have connected by then
        connected.append(cpus)

    monkeypatch.setattr(remotely, "connect", connect)
    monkeypatch.setattr(remotely, "is_connected", lambda: bool(connected))
    monkeypatch.setattr(cluster.connection, "current", lambda: cluster)
    cluster.connect(4)
    other.join()
    assert len(connected) == 1


@pytest.mark.parametrize(("actors", "cpus"), [(3, 64), (64, 64), (65, 65), (0, 2)])
def test_a_run_uses_the_cluster_that_begin_started_unless_it_needs_another_size(
    monkeypatch: pytest.MonkeyPatch, actors: int, cpus: int
) -> None:
    clusters: list[int] = []
    monkeypatch.delenv("REMOTELY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster.this_machine, "cores", lambda: 2)
    monkeypatch.setattr(remotely, "connect", lambda address=None, cpus=0: clusters.append(cpus))
    monkeypatch.setattr(remotely, "is_connected", lambda: bool(clusters))
    monkeypatch.setattr(remotely, "shutdown", clusters.clear)
    monkeypatch.setattr(cluster.connection, "current", lambda: cluster)
    cluster.begin().join()
    assert clusters == [64]
    cluster.connect(actors)
    assert clusters == [cpus]
    cluster.connect(1000)  # the next run of this process takes it as it is
    assert clusters == [cpus]


def test_begin_starts_no_cluster_if_another_is_named_and_leaves_errors_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise remotely.RemotelyError("the disk is full")

    monkeypatch.delenv("REMOTELY_ADDRESS", raising=False)
    monkeypatch.setattr(remotely, "connect", connect)
    monkeypatch.setattr(remotely, "is_connected", lambda: False)
    cluster.begin().join()
    with pytest.raises(TrainingError, match="the disk is full"):
        cluster.connect(1)
    asked: list[object] = []
    monkeypatch.setenv("REMOTELY_ADDRESS", "127.0.0.1:8010")
    monkeypatch.setattr(remotely, "connect", lambda *_, **__: asked.append(1))
    cluster.begin().join()
    assert not asked


@pytest.mark.usefixtures("local")
def test_a_cluster_is_its_own_only_if_connect_started_it() -> None:
    cluster.connect(1)
    assert cluster.is_own()
    remotely.shutdown()
    assert not cluster.is_own()
    remotely.connect()
    cluster.connect(1)
    assert not cluster.is_own()
