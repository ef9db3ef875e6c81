"""`remotely.count`, `gauge` and `histogram`, from the process that counts to the status."""

import json
from collections.abc import Iterator

import pytest

import remotely
from remotely.reporting.cluster_status import as_json
from remotely.transport import own_metrics
from tests.clusters import wait_until


@remotely.remote_class(cpus=0.1)
class Player:
    def play(self, length: float) -> None:
        remotely.count("episodes", env="Pong")
        remotely.gauge("loss", float("nan"))
        remotely.histogram("length", length)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    own_metrics.reset()
    yield
    own_metrics.reset()


def shown() -> dict[str, tuple[str, dict[str, str], float | None, int]]:
    (actor,) = remotely.status().actors
    return {each.name: (each.kind, each.labels, each.value, each.count) for each in actor.metrics}


def test_the_metrics_of_an_actor_are_in_the_status(any_cluster: None) -> None:
    player = Player()
    for length in (1.0, 1.0, 4.0):
        player.play(length)
    assert shown() == {
        "episodes": ("counter", {"env": "Pong"}, 3.0, 0),
        "loss": ("gauge", {}, None, 0),
        "length": ("histogram", {}, 6.0, 3),
    }
    (length_,) = [m for m in remotely.status().actors[0].metrics if m.name == "length"]
    assert (length_.p50, length_.p99) == (1.0, 4.0)
    assert length_.buckets == [(1.0, 2), (4.0, 1)]
    json.dumps(as_json(remotely.status()), allow_nan=False)


@pytest.mark.zeromq
def test_the_metrics_of_a_script_are_those_of_its_client(here: None) -> None:
    player = Player()
    player.play(1.0)
    remotely.count("rounds", 7)

    def rounds() -> list[float | None]:
        clients = remotely.status().clients
        return [m.value for each in clients for m in each.metrics if m.name == "rounds"]

    wait_until(lambda: rounds() == [7.0], "its client has reported them")
    (actor,) = remotely.status().actors
    assert "rounds" not in {each.name for each in actor.metrics}
    assert actor.owner is not None
    assert actor.owner.metrics == []  # else each actor would have them


def test_in_local_mode_they_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    remotely.connect()
    try:
        Player().play(1.0)
        (client,) = remotely.status().clients
        assert [each.name for each in client.metrics] == ["episodes", "loss", "length"]
    finally:
        remotely.shutdown()
