"""The manifest for Kubernetes: what is in it, and that what its Pods run does run.

There is no Kubernetes here: the commands of the Pods are run in network namespaces, where the names
that the Service would give are in /etc/hosts.  kubernetes-validate accepts the manifest (1.37).
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remotely.ops.kubernetes import KEYS, Pods, manifest
from remotely.transport.keys import MasterKey, MemberKey
from tests.clusters import DEADLINE_S, SCRIPTS, wait_until
from tests.machines import Namespaces, why_not

yaml = pytest.importorskip("yaml")

ROLES = ("master", "worker")
PODS = Pods("remotely", "registry/train:1", 8, "4", "8Gi", 1)


def documents(pods: Pods = PODS) -> dict[str, Any]:
    """Return what the manifest holds, by kind and name."""
    found = yaml.safe_load_all(manifest(pods))
    return {f"{one['kind']} {one['metadata']['name']}": one for one in found}


def container(found: dict[str, Any], role: str) -> dict[str, Any]:
    pod = found[f"StatefulSet remotely-{role}"]["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    return {**only, "volumes": pod["volumes"]}


def test_it_has_keys_a_name_for_each_pod_and_the_pods() -> None:
    found = documents()
    assert list(found) == [
        "Secret remotely-keys",
        "Service remotely",
        "StatefulSet remotely-master",
        "StatefulSet remotely-worker",
    ]
    assert found["Service remotely"]["spec"]["clusterIP"] == "None"
    for role, replicas in (("master", 1), ("worker", 8)):
        spec = found[f"StatefulSet remotely-{role}"]["spec"]
        assert (spec["replicas"], spec["serviceName"]) == (replicas, "remotely")
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert found["Service remotely"]["spec"]["selector"].items() <= labels.items()
    assert container(found, "master")["readinessProbe"]["tcpSocket"]["port"] == 8010
    limits = container(found, "worker")["resources"]["limits"]
    assert limits == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}


def test_the_keys_fit_together_and_are_new_each_time() -> None:
    texts = documents()["Secret remotely-keys"]["stringData"]
    master = MasterKey.from_dict(json.loads(texts["master.key"]))
    for role in ("client", "worker"):
        member = MemberKey.from_dict(json.loads(texts[f"{role}.key"]))
        assert master.role_of(member.pair.public) == role
    assert documents()["Secret remotely-keys"]["stringData"] != texts


def test_applying_another_manifest_restarts_all_pods_since_their_keys_are_new() -> None:
    def templates(pods: Pods) -> list[Any]:
        found = documents(pods)
        return [found[f"StatefulSet remotely-{role}"]["spec"]["template"] for role in ROLES]

    before, after = templates(PODS), templates(PODS._replace(workers=9))
    for one, another in zip(before, after, strict=True):
        assert one != another
    for master, worker in (before, after):
        keys = master["metadata"]["annotations"]["remotely/keys"]
        assert worker["metadata"]["annotations"]["remotely/keys"] == keys
        assert isinstance(keys, str)


def test_workers_see_their_own_key_alone_and_no_key_is_in_a_command() -> None:
    found = documents()
    (volume,) = container(found, "worker")["volumes"]
    assert [item["key"] for item in volume["secret"]["items"]] == ["worker.key"]
    secrets = [
        json.loads(t)["secret"] for t in found["Secret remotely-keys"]["stringData"].values()
    ]
    rest = str({name: one for name, one in found.items() if "Secret" not in name})
    assert not any(secret in rest for secret in secrets)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "Train"}, "'Train' is no name for Kubernetes"),
        ({"name": "a" * 41}, "no name for Kubernetes"),
        ({"image": 'x" evil: "y'}, "is no image"),
        ({"cpus": "many"}, "--cpus: 'many' is no amount"),
        ({"memory": "8 GB"}, "--memory: '8 GB' is no amount"),
    ],
)
def test_what_kubernetes_would_not_take_is_told(change: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        manifest(PODS._replace(**change))  # type: ignore[arg-type]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Namespaces]:
    if why := why_not():
        pytest.skip(why)
    made = Namespaces(tmp_path, 2)
    made.cable(0, 1, 1, "to-one")
    files = [Path("/etc/netns", name) for name in made.names]
    for folder in files:
        folder.mkdir(parents=True)
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n10.231.1.1 remotely-master-0.remotely\n"
        )
    yield made
    made.close()
    for folder in files:
        shutil.rmtree(folder)


def test_what_the_pods_run_is_a_cluster(pods: Namespaces, tmp_path: Path) -> None:
    found = documents()
    keys = tmp_path / "keys"
    keys.mkdir()
    for name, text in found["Secret remotely-keys"]["stringData"].items():
        (keys / name).write_text(text)  # and everybody may read it, as in a Pod

    def run(number: int, role: str, ip: str) -> "subprocess.Popen[str]":
        pod = container(found, role)
        *shell, line = pod["command"]
        given = {one["name"]: one.get("value", ip) for one in pod["env"]}
        return subprocess.Popen(
            pods.command(number, *shell, line.replace(f" {KEYS}/", f" {keys}/")),
            env={
                **os.environ,
                **given,
                "REMOTELY_HOME": str(pods.homes[number]),
                "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
            },
            stdout=subprocess.PIPE,
            text=True,
        )

    worker = run(1, "worker", "10.231.1.2")  # which has to wait for the master
    master = run(0, "master", "10.231.1.1")
    assert master.stdout is not None
    assert worker.stdout is not None
    assert "The cluster takes calls at 10.231.1.1:8010" in master.stdout.readline()
    assert "has joined remotely-master-0.remotely:8010" in worker.stdout.readline()
    script = "import remotely; print(len(remotely.status().machines))"
    asked = pods.does(
        0, sys.executable, "-c", script, REMOTELY_ADDRESS="remotely-master-0.remotely:8010"
    )
    assert (asked.stdout, asked.stderr) == ("2\n", "")
    master.send_signal(signal.SIGTERM)
    assert (master.wait(DEADLINE_S), worker.wait(DEADLINE_S)) == (0, 0)
    for process in (master, worker):
        assert process.stdout is not None
        process.stdout.close()
    wait_until(lambda: not list(tmp_path.glob("*/run/*/*/*.json")), "no daemon is left")
