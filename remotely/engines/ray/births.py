"""What a new actor is given on Ray, and where it may be."""

from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from remotely.engine import Options
from remotely.engines.ray.async_host import AsyncHost
from remotely.engines.ray.host import CONTROL, WAITS
from remotely.engines.ray.remote import NAMESPACE, HostedActor, ray_name, state_of
from remotely.engines.ray.serial_host import SerialHost
from remotely.errors import NoResources, RemotelyError

CALLS_AT_ONCE = 1_000_000  # in the event loop of an AsyncHost; how many run is the servant's matter

# How many calls of each group run at once: on threads, or in an event loop.
_Serial = ray.remote(concurrency_groups={CONTROL: 4, WAITS: 8})(SerialHost)
_Async = ray.remote(concurrency_groups={CONTROL: 1_000, WAITS: 1_000})(AsyncHost)

_NOT_DETACHED = (
    "an actor that is detached cannot be restarted on Ray, since whoever made it may be gone: "
    "leave out max_restarts, or detached=True, or use a cluster of 'remotely start'"
)


def check(options: Options) -> None:
    """Refuse options that this engine does not keep.  Raises RemotelyError."""
    if options.detached and options.max_restarts:
        raise RemotelyError(_NOT_DETACHED)


def new_host(actor: HostedActor, options: Options, node: str, made_within_s: float) -> Any:
    """Have Ray start the process of an actor, on a node or, if it is empty, on any.

    A detached one ends if it has had no object for so long.

    Returns at once.  Raises ValueError if the name is taken.
    """
    kind, at_once = (_Serial, 1) if actor.is_serial else (_Async, CALLS_AT_ONCE)
    return kind.options(
        name=ray_name(actor.actor),
        namespace=NAMESPACE,
        lifetime="detached" if options.detached else "non_detached",
        max_concurrency=at_once,
        max_restarts=0,  # Ray's know no window, and fail calls meanwhile: the owner restarts it
        max_task_retries=0,
        num_cpus=options.cores,
        num_gpus=options.gpus,
        resources=dict(options.resources),
        memory=options.memory or None,
        runtime_env={"env_vars": dict(options.env)} if options.env else None,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False) if node else "DEFAULT",
    ).remote(actor.name, made_within_s if options.detached else 0.0)


def node_for(options: Options) -> str:
    """Return the node on which an actor has to be; empty for any.  Raises NoResources."""
    if options.near:
        return _node_near(options.near)
    return _node_of(options.machine) if options.machine else ""


def _node_of(machine: str) -> str:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if machine in (node["NodeName"], node["NodeManagerHostname"], node["NodeManagerAddress"]):
            return str(node["NodeID"])
    names = ", ".join(sorted({node["NodeManagerHostname"] for node in nodes}))
    raise NoResources(f"machine={machine!r}: the Ray cluster has no such machine; it has {names}")


def _node_near(actor: str) -> str:
    try:
        state = state_of(ray.get_actor(ray_name(actor), namespace=NAMESPACE))
    except (ValueError, RayError):
        state = None
    if state is None:
        raise NoResources("near=...: that actor has ended")
    return str(state["node"])
