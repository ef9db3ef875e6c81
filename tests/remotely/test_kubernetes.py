"""examples/kubernetes.yaml: its parts are consistent, and its Pods form a cluster.

The tests need no Kubernetes: they run the commands of the Pods in network namespaces, with the
names of the Service in /etc/hosts.  The published schemas are those of kubernetes-validate, if that
is installed (108 MB; 1.37 accepts the file).
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
    (volume,) = (each for each in pod("worker")["volumes"] if "secret" in each)
    assert [item["key"] for item in volume["secret"]["items"]] == ["worker.key"]


# The profile "restricted", and that on which it builds
# (https://kubernetes.io/docs/concepts/security/pod-security-standards): a path, and what may be
# found there.  None stands for a field that is not there.
VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir"),
    *("ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
OF_A_POD: dict[str, tuple[object, ...]] = {
    "hostNetwork": (None, False),
    "hostPID": (None, False),
    "hostIPC": (None, False),
    "securityContext.runAsNonRoot": (True,),
    "securityContext.seccompProfile.type": ("RuntimeDefault", "Localhost"),
    "securityContext.windowsOptions.hostProcess": (None, False),
    "securityContext.appArmorProfile.type": (None, "RuntimeDefault", "Localhost"),
    "securityContext.seLinuxOptions": (None,),
    "securityContext.sysctls": (None,),
}
OF_A_CONTAINER: dict[str, tuple[object, ...]] = {
    "securityContext.allowPrivilegeEscalation": (False,),
    "securityContext.privileged": (None, False),
    "securityContext.capabilities.drop": (["ALL"],),
    "securityContext.capabilities.add": (None, [], ["NET_BIND_SERVICE"]),
    "securityContext.procMount": (None, "Default"),
    "securityContext.runAsNonRoot": (None, True),
    "securityContext.seccompProfile.type": (None, "RuntimeDefault", "Localhost"),
    "securityContext.appArmorProfile.type": (None, "RuntimeDefault", "Localhost"),
    "securityContext.seLinuxOptions": (None,),
    "securityContext.readOnlyRootFilesystem": (True,),  # ours; the profile does not ask for it
}


def at(tree: Any, path: str) -> Any:
    """Return what is at a path; None if it is not there."""
    for name in path.split("."):
        tree = (tree or {}).get(name)
    return tree


@pytest.mark.parametrize("role", ROLES)
def test_the_pods_keep_the_rules_of_the_restricted_profile(role: str) -> None:
    spec = pod(role)
    assert [path for path, allowed in OF_A_POD.items() if at(spec, path) not in allowed] == []
    assert at(spec, "securityContext.runAsUser") != 0
    for container in (each for kind in CONTAINERS for each in spec.get(kind, [])):
        wrong = [p for p, allowed in OF_A_CONTAINER.items() if at(container, p) not in allowed]
        assert wrong == []
        assert at(container, "securityContext.runAsUser") != 0
        assert not [port for port in container.get("ports", []) if port.get("hostPort")]
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            assert at(container, f"{probe}.httpGet.host") is None
            assert at(container, f"{probe}.tcpSocket.host") is None
    for volume in spec["volumes"]:
        (kind,) = set(volume) - {"name"}
        assert kind in VOLUMES


def test_each_pod_has_requests_limits_of_memory_and_folders_to_write_to() -> None:
    for role in ROLES:
        (container,) = pod(role)["containers"]
        asked, limits = (container["resources"][name] for name in ("requests", "limits"))
        assert set(asked) == {"cpu", "memory"}
        assert asked["memory"] == limits["memory"]
        given = {one["name"]: one.get("value", "") for one in container["env"]}
        writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
        assert writable == {"/tmp", "/dev/shm"}
        assert given["HOME"] == "/tmp"
        assert given["REMOTELY_HOME"].startswith("/tmp/")
    (worker,) = pod("worker")["containers"]
    assert worker["resources"]["requests"] == worker["resources"]["limits"]  # "Guaranteed"


def test_the_master_is_probed_and_each_role_has_a_budget_of_its_own() -> None:
    (master,) = pod("master")["containers"]
    assert master["livenessProbe"]["exec"]["command"] == ["remotely", "status", "--quiet"]
    assert master["readinessProbe"]["tcpSocket"]["port"] == 8010
    for role in ROLES:
        budget = documents()[f"PodDisruptionBudget remotely-{role}"]["spec"]
        pods = documents()[f"StatefulSet remotely-{role}"]["spec"]["selector"]
        assert budget["selector"] == pods


def test_the_file_is_valid_by_the_published_schemas() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in documents().values():
        validate(document, "1.33", strict=True)


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
