"""The status of a Ray cluster: `remotely.status()`."""

import contextlib
from collections import Counter
from typing import Any

import ray
from msgspec.structs import replace

from remotely.engines.ray.actor import NAMESPACE
from remotely.engines.ray.host import HostState
from remotely.machine import this_machine
from remotely.reporting.cluster_status import ClusterStatus, MachineStatus

STATES_S = 2.0  # timeout for the replies of actors


def report(address: str) -> ClusterStatus:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    free = ray._private.state.available_resources_per_node()
    machines = [_machine(node, free.get(node["NodeID"], {})) for node in nodes]
    names = {machine.worker: machine.machine for machine in machines}
    actors = [
        replace(state.status, machine=names.get(state.status.worker, "")) for state in _states()
    ]
    owners = [actor.owner for actor in actors if actor.owner is not None]
    count = Counter(owner.session for owner in owners)
    by_session = {owner.session: owner for owner in owners}
    clients = [replace(owner, actors=count[each]) for each, owner in by_session.items()]
    return ClusterStatus(
        address=address, waiting=0, machines=machines, clients=clients, actors=actors
    )


def _states() -> list[HostState]:
    """Ask every host for its state; those that have ended or not begun do not reply."""
    asked = []
    for found in ray.util.list_named_actors(all_namespaces=True):
        if found["namespace"] == NAMESPACE:
            with contextlib.suppress(ValueError):
                host = ray.get_actor(found["name"], namespace=NAMESPACE)
                asked.append(host.state.remote())
    done = ray.wait(asked, num_returns=len(asked), timeout=STATES_S)[0] if asked else []
    states = []
    for ref in done:
        with contextlib.suppress(ray.exceptions.RayError):
            if (state := ray.get(ref)) is not None:
                states.append(state)
    return states


def _machine(node: dict[str, Any], free: dict[str, float]) -> MachineStatus:
    total = node["Resources"]
    return MachineStatus(
        worker=node["NodeID"],
        machine=node["NodeManagerHostname"],
        host=node["NodeManagerHostname"],
        address=node["NodeManagerAddress"],
        python=this_machine.PYTHON,  # Ray refuses others
        cpus=total.get("CPU", 0),
        gpus=int(total.get("GPU", 0)),
        memory=int(total.get("memory", 0)),
        free_cpus=free.get("CPU", 0),
        free_gpus=free.get("GPU", 0),
        free_memory=int(free.get("memory", 0)),
        resources=_others(total),
        free_resources=_others(free),
    )


def _others(resources: dict[str, float]) -> dict[str, float]:
    own = ("CPU", "GPU", "memory", "object_store_memory")
    return {
        name: amount
        for name, amount in resources.items()
        if name not in own and not name.startswith(("node:", "accelerator_type:"))
    }
