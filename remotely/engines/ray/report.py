"""Who is on a Ray cluster, as `remotely.status()` tells it."""

from typing import Any

import ray

from remotely.engines.ray.remote import NAMESPACE
from remotely.machine import this_machine
from remotely.reporting.cluster_status import (
    ActorStatus,
    ClientStatus,
    ClusterStatus,
    MachineStatus,
)

ANSWER_S = 2.0  # what actors have to say what they do


def report(address: str) -> ClusterStatus:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    free = ray._private.state.available_resources_per_node()
    machines = [_machine(node, free.get(node["NodeID"], {})) for node in nodes]
    by_node = {machine.worker: machine for machine in machines}
    actors = [_actor(state, by_node) for state in _states()]
    owners = {actor.owner for actor in actors if actor.owner is not None}
    clients = [
        ClientStatus(pid=pid, machine=machine, actor=actor, actors=_owned(actors, pid, machine))
        for pid, machine, actor in {(o.pid, o.machine, o.actor) for o in owners}
    ]
    return ClusterStatus(
        address=address, waiting=0, machines=machines, clients=clients, actors=actors
    )


def _owned(actors: list[ActorStatus], pid: int, machine: str) -> int:
    owners = [actor.owner for actor in actors if actor.owner is not None]
    return sum(1 for owner in owners if (owner.pid, owner.machine) == (pid, machine))


def _states() -> list[dict[str, Any]]:
    """Ask every host what it does; those that have ended or not begun say nothing."""
    names = ray.util.list_named_actors(all_namespaces=True)
    asked = []
    for name in [found["name"] for found in names if found["namespace"] == NAMESPACE]:
        try:
            host = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            continue
        asked.append(host.state.remote())
    if not asked:
        return []
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
    found = []
    for ref in done:
        try:
            state = ray.get(ref)
        except ray.exceptions.RayError:
            continue
        if state is not None:
            found.append(state)
    return found


def _machine(node: dict[str, Any], free: dict[str, float]) -> MachineStatus:
    there = node["Resources"]
    return MachineStatus(
        worker=node["NodeID"],
        machine=node["NodeManagerHostname"],
        host=node["NodeManagerHostname"],
        address=node["NodeManagerAddress"],
        python=this_machine.PYTHON,  # Ray refuses others
        cpus=there.get("CPU", 0),
        gpus=int(there.get("GPU", 0)),
        memory=int(there.get("memory", 0)),
        free_cpus=free.get("CPU", 0),
        free_gpus=free.get("GPU", 0),
        free_memory=int(free.get("memory", 0)),
        resources=_others(there),
        free_resources=_others(free),
    )


def _others(resources: dict[str, float]) -> dict[str, float]:
    own = ("CPU", "GPU", "memory", "object_store_memory")
    return {
        name: amount
        for name, amount in resources.items()
        if name not in own and not name.startswith(("node:", "accelerator_type:"))
    }


def _actor(state: dict[str, Any], by_node: dict[str, MachineStatus]) -> ActorStatus:
    node = state["node"]
    pid, machine, actor = state["owner"]
    return ActorStatus(
        name=state["name"],
        class_name=state["class_name"],
        actor=state["actor"],
        machine=by_node[node].machine if node in by_node else "",
        worker=node,
        pid=state["pid"],
        cpus=state["cpus"],
        gpus=state["gpus"],
        gpu_ids=list(state["gpu_ids"]),
        memory_limit=state["memory"],
        resources=state["resources"],
        cpu_percent=state["cpu_percent"],
        rss=state["rss"],
        calls=state["calls"],
        running=state["running"],
        method=state["method"],
        method_s=state["method_s"],
        queue=0,
        since=state["since"],
        owner=ClientStatus(pid=pid, machine=machine, actor=actor) if pid else None,
    )
