"""examples/kubernetes.yaml: its parts are consistent, and its Pods form a cluster.

The tests need no Kubernetes: they run the commands of the Pods in network namespaces, with the
names of the Service in /etc/hosts.  kubernetes-validate accepts the file (1.37).
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remotely.transport import key_files
from tests.clusters import DEADLINE_S, SCRIPTS, wait_until
from tests.machines import Namespaces, why_not

yaml = pytest.importorskip("yaml")

ROLES = ("master", "worker")
FILE = Path(__file__).parents[2] / "examples" / "kubernetes.yaml"


def documents() -> dict[str, Any]:
    """Return the documents of the file, by kind and name."""
    return {
        f"{one['kind']} {one['metadata']['name']}": one
        for one in yaml.safe_load_all(FILE.read_text())
    }


def pod(role: str) -> Any:
    return documents()[f"StatefulSet remotely-{role}"]["spec"]["template"]["spec"]


def test_the_service_names_each_pod() -> None:
    found = documents()
    service = found["Service remotely"]["spec"]
    assert service["clusterIP"] == "None"
    for role in ROLES:
        spec = found[f"StatefulSet remotely-{role}"]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["serviceName"] == "remotely"
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert service["selector"].items() <= labels.items()


def test_workers_only_see_their_own_key() -> None:
    (volume,) = pod("worker")["volumes"]
    assert [item["key"] for item in volume["secret"]["items"]] == ["worker.key"]


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


def test_the_pods_form_a_cluster(pods: Namespaces, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key_files.make_keys(keys)
    for file in keys.iterdir():
        file.chmod(0o644)  # world-readable, as in a Pod

    def run(number: int, role: str, ip: str) -> "subprocess.Popen[str]":
        (container,) = pod(role)["containers"]
        *shell, line = container["command"]
        given = {one["name"]: one.get("value", ip) for one in container["env"]}
        return subprocess.Popen(
            pods.command(number, *shell, line.replace(" /keys/", f" {keys}/")),
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
