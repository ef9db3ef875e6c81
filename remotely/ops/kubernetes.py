"""A cluster on Kubernetes, as the text of a manifest.

    Secret         the keys of this cluster, made now and kept nowhere else
    Service        headless: a name for each Pod
    StatefulSet    the master, at NAME-master-0.NAME
    StatefulSet    the workers

No operator and no chart: what a Pod runs is `remotely start` or `remotely join` in the foreground.
The kubelet waits for the master's port; a worker waits for the master, and ends if that is lost, so
that its Pod starts again and joins afresh.

Each manifest has new keys, and a Pod reads its keys when it starts.  So the templates of all Pods
name the keys (KEYS_OF), by a hash of the master's public one: applying another manifest restarts
all Pods, and not those alone whose template has changed otherwise.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from remotely.protocol.address import DEFAULT_PORT
from remotely.transport.keys import fresh_keys

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")  # with what is added, a label of DNS
AMOUNT = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kKMGTPE]i?)?")
IMAGE = re.compile(r"[\w.\-/:@]+")
PATIENCE_S = 600  # for an image to be pulled on the master's node
MASTERLESS_S = 60  # the master's Pod may start again on the same node within it
KEYS_OF = "remotely/keys"  # an annotation
KEYS = "/keys"  # where the Secret is mounted; a key file has to be ours alone, which that is not


class Pods(NamedTuple):
    """What is to run."""

    name: str
    image: str
    workers: int
    cpus: str
    memory: str = ""
    gpus: int = 0

    def check(self) -> None:
        """Raise ValueError if Kubernetes would not take one of these."""
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} is no name for Kubernetes: at most 40 small letters, digits and "
                "dashes, a letter first"
            )
        if not IMAGE.fullmatch(self.image):
            raise ValueError(f"{self.image!r} is no image")
        for option, amount in (("--cpus", self.cpus), ("--memory", self.memory)):
            if amount and not AMOUNT.fullmatch(amount):
                raise ValueError(f"{option}: {amount!r} is no amount for Kubernetes, as 4 or 8Gi")


def manifest(pods: Pods) -> str:
    """Return the manifest, with new keys in it."""
    pods.check()
    master, client, worker = fresh_keys()
    secrets = {"master": master.to_dict(), "client": client.to_dict(), "worker": worker.to_dict()}
    version = hashlib.sha256(master.pair.public).hexdigest()[:16]
    address = f"{pods.name}-master-0.{pods.name}:{DEFAULT_PORT}"
    start = (
        'umask 077; mkdir -p "$REMOTELY_HOME/keys"; for key in master worker client; do '
        f'cat {KEYS}/$key.key > "$REMOTELY_HOME/keys/$key.key"; done; '
        'exec remotely start --foreground --host "$POD_IP" --cpus 0 --gpus 0'
    )
    join = (
        f"exec remotely join {address} --key - --foreground --patience {PATIENCE_S} "
        f"--end-without-master {MASTERLESS_S} < {KEYS}/worker.key"
    )
    limits = {"cpu": pods.cpus, "memory": pods.memory}
    limits = {name: amount for name, amount in limits.items() if amount}
    if pods.gpus:
        limits["nvidia.com/gpu"] = str(pods.gpus)
    readiness = f"""
          ports: [{{name: master, containerPort: {DEFAULT_PORT}}}]
          readinessProbe:
            tcpSocket: {{port: {DEFAULT_PORT}}}
            periodSeconds: 2"""
    return "---\n".join(
        (
            _secret(pods.name, secrets),
            _service(pods.name),
            _stateful_set(pods, "master", 1, start, address, version, readiness, ""),
            _stateful_set(
                pods,
                "worker",
                pods.workers,
                join,
                address,
                version,
                f"\n          resources: {{limits: {json.dumps(limits)}}}",
                ", items: [{key: worker.key, path: worker.key}]",
            ),
        )
    )


def _secret(name: str, keys: Mapping[str, object]) -> str:
    lines = "".join(f"  {role}.key: {json.dumps(json.dumps(key))}\n" for role, key in keys.items())
    return f"""apiVersion: v1
kind: Secret
metadata: {{name: {name}-keys, labels: {{app: {name}}}}}
stringData:
{lines}"""


def _service(name: str) -> str:
    return f"""apiVersion: v1
kind: Service
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  clusterIP: None
  publishNotReadyAddresses: true  # a worker connects to the master, and to workers that start
  selector: {{app: {name}}}
  ports: [{{name: master, port: {DEFAULT_PORT}}}]
"""


def _stateful_set(
    pods: Pods,
    role: str,
    replicas: int,
    command: str,
    address: str,
    version: str,
    more: str,
    keys: str,
) -> str:
    name = pods.name
    secret = f"{{secretName: {name}-keys{keys}}}"
    return f"""apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: {name}-{role}, labels: {{app: {name}}}}}
spec:
  serviceName: {name}
  replicas: {replicas}
  podManagementPolicy: Parallel
  selector: {{matchLabels: {{app: {name}, role: {role}}}}}
  template:
    metadata:
      labels: {{app: {name}, role: {role}}}
      annotations: {{{KEYS_OF}: "{version}"}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 30
      containers:
        - name: {role}
          image: {json.dumps(pods.image)}
          command: [sh, -c, {json.dumps(command)}]
          env:
            - {{name: REMOTELY_HOME, value: /tmp/remotely}}
            - {{name: REMOTELY_ADDRESS, value: "{address}"}}
            - {{name: POD_IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}
          volumeMounts: [{{name: keys, mountPath: {KEYS}, readOnly: true}}]{more}
      volumes: [{{name: keys, secret: {secret}}}]
"""
