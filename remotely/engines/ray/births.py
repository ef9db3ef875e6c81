"""What a new actor is given on Ray, and where it may be."""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from remotely.engine import Options
from remotely.engines.ray.async_host import AsyncHost
from remotely.engines.ray.host import CONTROL, WAITS
from remotely.engines.ray.remote import NAMESPACE, HostedActor, ray_name
from remotely.engines.ray.serial_host import SerialHost
from remotely.errors import NoResources, RemotelyError
from remotely.protocol.resources import format_bytes

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


def new_host(actor: HostedActor, options: Options) -> Any:
    """Have Ray start the process of an actor; returns at once."""
    kind, at_once = (_Serial, 1) if actor.is_serial else (_Async, CALLS_AT_ONCE)
    return kind.options(
        name=ray_name(actor.actor),
        namespace=NAMESPACE,
        lifetime="detached" if options.detached else "non_detached",
        max_concurrency=at_once,
        max_restarts=0,  # Ray's know no window, and fail calls meanwhile: the owner restarts it
        max_task_retries=0,
        num_cpus=options.cpus,
        num_gpus=options.gpus,
        resources=dict(options.resources),
        memory=options.memory or None,
        runtime_env={"env_vars": dict(options.env)} if options.env else None,
        scheduling_strategy=_strategy(options),
    ).remote(actor.name)


def check_feasible(options: Options, what: str) -> None:
    """Raise NoResources if no machine could ever have room for an actor."""
    wanted = {
        "CPU": options.cpus,
        "GPU": options.gpus,
        "memory": float(options.memory),
        **options.resources,
    }
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if any(_fits(wanted, node["Resources"]) for node in nodes):
        return
    largest = {name: max(n["Resources"].get(name, 0) for n in nodes) for name in wanted}
    asked = ", ".join(_words(name, amount) for name, amount in wanted.items() if amount)
    there = ", ".join(_words(name, largest[name]) for name, amount in wanted.items() if amount)
    raise NoResources(
        f"no machine of the Ray cluster has room for {what}, which asks for {asked}; the most that "
        f"one has is {there}: ask for less, or add a machine"
    )


def _words(name: str, amount: float) -> str:
    if name == "memory":
        return f"{format_bytes(int(amount))} of memory"
    return f"{amount:g} {name}{'s' * (name in ('CPU', 'GPU'))}"


def _fits(wanted: dict[str, float], there: dict[str, float]) -> bool:
    return all(there.get(name, 0.0) >= amount for name, amount in wanted.items() if amount)


def _strategy(options: Options) -> Any:
    if not options.machine and not options.near:
        return "DEFAULT"
    node = _node_near(options.near) if options.near else _node_of(options.machine)
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _node_of(machine: str) -> str:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if machine in (node["NodeName"], node["NodeManagerHostname"], node["NodeManagerAddress"]):
            return str(node["NodeID"])
    names = ", ".join(sorted({node["NodeManagerHostname"] for node in nodes}))
    raise NoResources(f"machine={machine!r}: the Ray cluster has no such machine; it has {names}")


def _node_near(actor: str) -> str:
    try:
        host = ray.get_actor(ray_name(actor), namespace=NAMESPACE)
    except ValueError:
        raise NoResources("near=...: that actor has ended") from None
    state = ray.get(host.state.remote())
    return str(state["node"])
