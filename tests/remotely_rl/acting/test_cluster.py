"""The cluster that training runs on."""

import pytest

import remotely
from remotely_rl.acting import cluster


def test_a_cluster_that_is_there_is_used_and_none_is_started_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []
    monkeypatch.setattr(remotely, "connect", lambda cpus: started.append(cpus))
    monkeypatch.setattr(remotely, "is_connected", lambda: True)
    cluster.connect(4)
    monkeypatch.setattr(remotely, "is_connected", lambda: False)
    monkeypatch.setenv("REMOTELY_ADDRESS", "127.0.0.1:8010")
    cluster.connect(4)
    assert started == []
    monkeypatch.delenv("REMOTELY_ADDRESS")
    cluster.connect(400)
    assert started == [400]
