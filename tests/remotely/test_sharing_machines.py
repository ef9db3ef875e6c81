"""Placement: shares of GPUs, custom resources, groups, and actors near others."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.errors import NoResources
from tests.clusters import Started, free_port, run, wait_until


@remotely.remote_class(cpus=0)
class Look:
    def gpus(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def host(self) -> str:
        return os.environ.get("REMOTELY_HOST", "")


def status_of(actor: Any) -> Any:
    (found,) = [a for a in remotely.actors() if remotely.get_actor(a.name) == actor]
    return found


def test_gpus_are_shared_and_custom_resources_are_counted(nothing_left: None) -> None:
    remotely.connect(gpus=[2, 5], resources={"license": 2, "disk": 0.5}, patience_s=1)
    halves = [remotely.options(Look, gpus=0.5)() for _ in range(3)]
    assert [half.gpus() for half in halves] == ["2", "2", "5"]
    with pytest.raises(NoResources, match=r"asks for 0 CPUs and 1 GPU"):
        remotely.options(Look, gpus=1)()
    assert status_of(halves[0]).gpus == 0.5
    assert remotely.status().machines[0].free_gpus == 0.5
    remotely.close(halves[2])
    assert remotely.options(Look, gpus=1)().gpus() == "5"
    assert Look().gpus() == ""

    licensed = remotely.options(Look, resources={"license": 1})
    first, second = licensed(), licensed()
    with pytest.raises(NoResources, match="asks for 0 CPUs and 1 license"):
        licensed()
    with pytest.raises(NoResources, match="3 license where the largest worker has 2"):
        remotely.options(Look, resources={"license": 3})()
    (machine,) = remotely.status().machines
    assert machine.resources == {"disk": 0.5, "license": 2}
    assert machine.free_resources == {"disk": 0.5, "license": 0}
    assert status_of(first).resources == {"license": 1}
    remotely.close(second)
    assert licensed().gpus() == ""


def test_a_class_is_placed_where_its_labels_are(nothing_left: None) -> None:
    remotely.connect(labels=["ssd", "zone=a"], patience_s=1)
    assert remotely.options(Look, labels=["zone=a"])().gpus() == ""
    with pytest.raises(NoResources, match="has the label 'sdd'; did you mean 'ssd'") as raised:
        remotely.options(Look, labels=["sdd", "ssd"])()
    assert "remotely.connect(labels=['sdd'])" in str(raised.value)
    (machine,) = remotely.status().machines
    assert machine.labels == ["ssd", "zone=a"]


def test_actors_spread_and_one_is_placed_near_another_or_packs(
    started: Started, nothing_left: None
) -> None:
    remotely.connect(started.address, key=started.key)
    spread = remotely.group(Look, 4)
    hosts = spread.host()
    assert len(set(hosts)) > 1
    for actor, host in zip(spread, hosts, strict=True):
        assert remotely.options(Look, near=actor)().host() == host
        assert remotely.group(remotely.options(Look, near=actor), 2).host() == [host] * 2
    assert len(set(remotely.group(remotely.options(Look, pack=True), 4).host())) == 1
    assert remotely.options(Look, machine=socket.gethostname())().host() in set(hosts)
    address = status_of(spread[0]).worker
    (machine,) = [m for m in remotely.status().machines if m.worker == address]
    assert remotely.options(Look, machine=machine.address)().host() == hosts[0]
    with pytest.raises(NoResources, match=r"no machine of this cluster is named 'mars': there"):
        remotely.options(Look, machine="mars")()
    remotely.close(spread[0])
    wait_until(lambda: len(remotely.actors()) == 3, "it has ended")
    with pytest.raises(NoResources, match="near has ended"):
        remotely.options(Look, near=spread[0])()


@pytest.mark.parametrize(
    ("option", "error", "says"),
    [
        ({"gpus": 1.5}, ValueError, "whole GPUs, or a part of one"),
        ({"gpus": 0.0001}, ValueError, "whole GPUs, or a part of one"),
        ({"gpus": -1}, ValueError, "gpus=-1"),
        ({"resources": {"cpus": 1}}, ValueError, "cpus, gpus and memory are built in"),
        ({"resources": {"a b": 1}}, ValueError, "letters, digits"),
        ({"resources": {"license": -1}}, ValueError, "a number, at least 0"),
        ({"resources": {"license": True}}, ValueError, "a number, at least 0"),
        ({"resources": [("license", 1)]}, TypeError, "must be a dict"),
        ({"labels": ["a b"]}, ValueError, "is not a label"),
        ({"labels": "ssd"}, TypeError, "must be a list"),
        ({"near": "an actor"}, TypeError, "the handle of an actor"),
        ({"machine": 5}, ValueError, "a string"),
        ({"pack": "yes"}, ValueError, "True or False"),
    ],
)
def test_invalid_options_are_refused(
    option: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        remotely.options(Look, **option)


def test_invalid_resources_of_a_cluster_are_refused(nothing_left: None) -> None:
    with pytest.raises(ValueError, match="a number, at least 0"):
        remotely.connect(resources={"license": "two"})  # type: ignore[dict-item]
    with pytest.raises(remotely.RemotelyError, match="for a cluster of your own"):
        remotely.connect("127.0.0.1:1", resources={"license": 2})


def test_two_workers_of_one_machine_give_its_gpus_and_its_memory_away_once(
    nothing_left: None, tmp_path: Path
) -> None:
    port, home = str(free_port()), tmp_path / "home"
    offer = ("--cpus", "4", "--gpus", "2")
    run(home, "start", "--port", port, *offer)
    try:
        key = str(home / "keys" / "worker.key")
        run(home, "join", f"127.0.0.1:{port}", "--key", key, *offer)
        remotely.connect(f"127.0.0.1:{port}", key=home / "keys" / "client.key", patience_s=0.2)
        whole = remotely.options(Look, gpus=1)
        actors = [whole(), whole()]
        assert sorted(actor.gpus() or "" for actor in actors) == ["0", "1"]
        with pytest.raises(NoResources, match="1 GPU"):
            whole()
        one, other = remotely.status().machines
        assert one.pool == other.pool
        large = remotely.options(Look, memory=int(0.6 * one.memory))
        kept = large()
        with pytest.raises(NoResources, match="GiB"):
            large()
        with pytest.raises(NoResources):
            remotely.group(large, 2)
        assert kept.gpus() == ""
    finally:
        remotely.shutdown()
        run(home, "stop", "--port", port)
