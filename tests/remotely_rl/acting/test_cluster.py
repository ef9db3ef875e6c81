"""The cluster that training runs on."""

import threading

import pytest

import remotely
from remotely_rl.acting import cluster


def test_a_cluster_that_is_there_is_used_and_none_is_started_beside_it(
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


@pytest.mark.usefixtures("local")
def test_a_cluster_is_its_own_only_if_it_has_started_it() -> None:
    cluster.connect(1)
    assert cluster.is_own()
    remotely.shutdown()
    assert not cluster.is_own()
    remotely.connect()
    cluster.connect(1)
    assert not cluster.is_own()
