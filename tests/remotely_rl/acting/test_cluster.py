"""The cluster that training runs on."""

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


@pytest.mark.usefixtures("local")
def test_a_cluster_is_its_own_only_if_it_has_started_it() -> None:
    cluster.connect(1)
    assert cluster.is_own()
    remotely.shutdown()
    assert not cluster.is_own()
    remotely.connect()
    cluster.connect(1)
    assert not cluster.is_own()
