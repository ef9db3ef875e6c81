"""Tests of connecting to a cluster for training."""

import threading

import pytest

import remotely
from remotely_rl import cluster
from remotely_rl.errors import TrainingError


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, int | None]]:
    """Replace remotely's connection by a fake; return the arguments of `connect`."""
    calls: list[tuple[str | None, int | None]] = []
    monkeypatch.delenv("REMOTELY_ADDRESS", raising=False)
    monkeypatch.setattr(
        remotely, "connect", lambda address=None, cpus=None: calls.append((address, cpus))
    )
    monkeypatch.setattr(remotely, "is_connected", lambda: bool(calls))
    monkeypatch.setattr(remotely, "shutdown", calls.clear)
    monkeypatch.setattr(cluster.connection, "current", lambda: cluster)
    monkeypatch.setattr(cluster.this_machine, "cores", lambda: 2)
    return calls


def test_an_existing_cluster_is_used_instead_of_a_new_one(
    connected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    connected.append("before")
    cluster.connect(4)
    assert connected == ["before"]
    connected.clear()
    monkeypatch.setenv("REMOTELY_ADDRESS", "127.0.0.1:8010")
    cluster.connect(4)
    assert connected == [("127.0.0.1:8010", None)]


@pytest.mark.parametrize(("actors", "cpus"), [(4, 64), (400, 400), (0, 2)])
def test_a_new_cluster_has_extra_room_or_for_0_actors_a_cpu_per_core(
    connected: list[object], actors: int, cpus: int
) -> None:
    cluster.connect(actors)
    assert connected == [(None, cpus)]


def test_runs_in_several_threads_share_the_cluster_of_the_first(
    connected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = threading.Thread(target=cluster.connect, args=(4,))

    def connect(address: str | None, cpus: int) -> None:
        if threading.current_thread() is not other:
            other.start()
            other.join(0.05)  # it would have connected by then
        connected.append(cpus)

    monkeypatch.setattr(remotely, "connect", connect)
    cluster.connect(4)
    other.join()
    assert len(connected) == 1


@pytest.mark.parametrize(("actors", "cpus"), [(64, 64), (65, 65), (0, 2)])
def test_a_run_uses_the_cluster_that_begin_started_unless_it_needs_another_size(
    connected: list[object], actors: int, cpus: int
) -> None:
    cluster.begin().join()
    assert connected == [(None, 64)]
    cluster.connect(actors)
    assert connected == [(None, cpus)]
    cluster.connect(1000)  # the next run of this process takes it as it is
    assert connected == [(None, cpus)]


def test_begin_starts_no_cluster_if_another_is_named_and_leaves_errors_to_connect(
    connected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise remotely.RemotelyError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(remotely, "connect", fail)
        cluster.begin().join()
        with pytest.raises(TrainingError, match="the disk is full"):
            cluster.connect(1)
    monkeypatch.setenv("REMOTELY_ADDRESS", "127.0.0.1:8010")
    cluster.begin().join()
    assert not connected


@pytest.mark.parametrize("name", ["REMOTELY_ADDRESS", "REMOTELY_LOCAL"])
def test_begin_takes_an_empty_variable_for_one_that_is_not_set(
    name: str, connected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "")
    cluster.begin().join()
    assert connected == [(None, 64)]


def test_an_interpreter_is_looked_for_here_only_if_all_actors_will_be_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("REMOTELY_ADDRESS", raising=False)
    monkeypatch.delenv("REMOTELY_LOCAL", raising=False)
    said = "^env_python and env_packages: there is no interpreter '/nowhere'"
    with pytest.raises(TrainingError, match=said):
        cluster.check_interpreter("/nowhere", ["six"])
    monkeypatch.setenv("REMOTELY_ADDRESS", "node1:8010")
    cluster.check_interpreter("/nowhere", [])


@pytest.mark.usefixtures("local")
def test_a_cluster_is_its_own_only_if_connect_started_it() -> None:
    cluster.connect(1)
    assert cluster.is_own()
    remotely.shutdown()
    assert not cluster.is_own()
    remotely.connect()
    cluster.connect(1)
    assert not cluster.is_own()
