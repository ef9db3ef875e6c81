"""The status of a cluster: as objects for `remotely.status()`, as plain data for `remotely status
--json`, and as tables for people.  Pure.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from remotely.protocol import control
from remotely.protocol.resources import format_bytes

_FIGURES = ("cpu_percent", "rss", "calls", "running", "method", "method_s")
_END = ("ago_s", "lost", "restarting", "exit", "why", "stderr")
JSON_FORMAT = 1  # raised when a name below is removed or changes its meaning, not when one is added
_MACHINE_COLUMNS = (
    "MACHINE", "ADDRESS", "PYTHON", "FREE CPUS", "FREE GPUS", "FREE MEMORY", "ACTORS",
)  # fmt: skip
_CLIENT_COLUMNS = ("CLIENT", "MACHINE", "ACTORS")
_ACTOR_COLUMNS = (
    "ACTOR", "CLASS", "MACHINE", "PID", "CPU", "MEMORY", "CALLS", "RUNS", "QUEUE", "SINCE", "WHOSE",
)  # fmt: skip


class MachineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, with memory in bytes; workers on the same machine have the same `host`.

    If it cannot be reached, `away_s` says for how long, and none of its resources are free.
    """

    worker: str  # its id
    machine: str
    host: str
    address: str
    python: str
    away_s: float = 0.0
    cpus: float
    gpus: int
    memory: int
    free_cpus: float
    free_gpus: float
    free_memory: int
    resources: dict[str, float] = {}  # custom ones
    free_resources: dict[str, float] = {}


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A script, or an actor that uses the cluster; `actor` is then its name."""

    pid: int
    machine: str
    actor: str
    actors: int = 0  # how many it owns


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An actor: its resources, its usage and its calls."""

    name: str
    class_name: str = msgspec.field(name="class")
    actor: str  # its id
    machine: str
    worker: str
    pid: int
    cpus: float
    gpus: float = 0  # below 1: a share of one GPU
    gpu_ids: list[int | str]  # as CUDA names them
    memory_limit: int  # bytes; 0 means none
    resources: dict[str, float] = {}  # custom ones
    cpu_percent: float
    rss: int  # bytes
    calls: int
    running: int  # calls that run now
    method: str  # of the call that has run longest; empty if none runs
    method_s: float  # how long that call has run
    queue: int  # calls that do not run yet
    lends: bool = False  # it waits, and its CPUs are free for others meanwhile
    since: float  # seconds since 1970
    owner: ClientStatus | None  # the actor ends with it; None if detached or dialled in
    dialled_in: bool = False  # by `remotely.serve`


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cluster, as `remotely.status()` returns it."""

    address: str  # of the master; empty without a cluster
    waiting: int  # requests that wait for resources
    machines: list[MachineStatus]
    clients: list[ClientStatus]
    actors: list[ActorStatus]


def as_objects(facts: dict[str, Any]) -> ClusterStatus:
    return msgspec.convert(facts, ClusterStatus)


def status_facts(found: control.Status, address: str, without: str = "") -> dict[str, Any]:
    """Return what `status --json` prints, documented there; `without` is a session to omit."""
    actors = [(worker, actor) for worker in found.workers for actor in worker.actors]
    names = {actor.location.actor: actor.location.name for _, actor in actors}
    owned = Counter(actor.request.owner for _, actor in actors)
    owners = {
        client.session: {
            "pid": client.pid,
            "machine": client.machine,
            "actor": names.get(client.actor, client.actor),
            "actors": owned[client.session],
        }
        for client in found.clients
    }
    unseen = {"pid": 0, "machine": "", "actor": ""}  # disconnected, and may come back
    machine = ("worker", "machine", "host", "address", "python", "away_s")
    return {
        "format": JSON_FORMAT,
        "address": address,
        "waiting": found.waiting,
        "waits": [
            {
                "class": wait.class_name,
                "count": wait.count,
                "waits_s": wait.waits_s,
                "why": wait.why,
            }
            for wait in found.waits
        ],
        "machines": [
            {
                **{name: getattr(worker, name) for name in machine},
                "cpus": worker.resources.cpus,
                "gpus": int(worker.resources.gpus),
                "memory": worker.resources.memory,
                "free_cpus": worker.free_cpus,
                "free_gpus": _whole(worker.free_gpus),
                "free_memory": worker.free_memory,
                "resources": dict(worker.resources.others),
                "free_resources": worker.free_others,
            }
            for worker in found.workers
            if worker.python  # else it is a process in `remotely.serve`
        ],
        "clients": [client for session, client in owners.items() if session != without],
        "actors": [
            {
                "name": actor.location.name,
                "class": actor.location.class_name,
                "actor": actor.location.actor,
                "machine": actor.location.machine,
                "worker": worker.worker,
                "pid": actor.location.pid,
                "cpus": actor.request.resources.cpus,
                "gpus": _whole(actor.request.resources.gpus),
                "gpu_ids": [_gpu(worker, gpu) for gpu in actor.gpu_ids],
                "memory_limit": actor.request.resources.memory,
                "resources": dict(actor.request.resources.others),
                **{name: getattr(actor.figures, name) for name in _FIGURES},
                "queue": actor.queue,
                "lends": actor.lends,
                "since": actor.since,
                "owner": owners.get(owner, unseen) if (owner := actor.request.owner) else None,
                "dialled_in": bool(actor.request.classes),
            }
            for worker, actor in actors
        ],
        "ends": [
            {"name": end.name, "class": end.class_name, "machine": end.machine}
            | {name: getattr(end, name) for name in _END}
            for end in found.ends
        ],
    }


def _whole(number: float) -> float:
    """Return 2 instead of 2.0, for programs that read the JSON."""
    return int(number) if number == int(number) else number


def _gpu(worker: control.WorkerStatus, gpu: int) -> int | str:
    """Return the CUDA name (as in nvidia-smi) of the cluster's GPU number `gpu`."""
    name = worker.gpu_names[gpu] if gpu < len(worker.gpu_names) else str(gpu)
    return int(name) if name.isdecimal() else name


def totals(machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the total and the free resources of all machines.

    CPUs and GPUs are summed over workers; memory only over machines, because each worker reports
    all memory of its machine.
    """
    names = ("cpus", "free_cpus", "gpus", "free_gpus")
    largest = {m["host"]: m["memory"] for m in sorted(machines, key=lambda m: m["memory"])}
    memory = sum(largest.values())
    taken = sum(m["memory"] - m["free_memory"] for m in machines)
    return {
        **{name: sum(m[name] for m in machines) for name in names},
        "memory": memory,
        "free_memory": memory - taken,
    }


def tables(facts: dict[str, Any], now: float) -> str:
    """Return tables for people; `now` is in seconds since 1970."""
    machines, actors = facts["machines"], facts["actors"]
    total = totals(machines)
    head = (
        f"{facts['address']}: {_count(len(machines), 'machine')}, {_count(len(actors), 'actor')}; "
        f"free: {total['free_cpus']:g} of {total['cpus']:g} CPUs, {total['free_gpus']:g} of "
        f"{total['gpus']} GPUs, {format_bytes(total['free_memory'])} of "
        f"{format_bytes(total['memory'])}"
    )
    for m in machines:
        if m["free_cpus"] < 0:
            held = f"{m['cpus'] - m['free_cpus']:g} CPUs of {m['cpus']:g}"
            head += f"\n{m['machine']}: actors hold {held}, until those that others lent are back"
    if facts["waiting"]:
        head += f"\n{_count(facts['waiting'], 'request')} waiting for room"
        for wait in facts["waits"]:
            head += f"\n  {wait['count']} of {wait['class']}: {wait['why']}"
    rows: list[tuple[str, ...]] = [
        (
            m["machine"],
            m["address"],
            m["python"],
            f"AWAY {_duration(m['away_s'])}"
            if m["away_s"]
            else f"{m['free_cpus']:g} of {m['cpus']:g}",
            f"{m['free_gpus']:g} of {m['gpus']}",
            f"{format_bytes(m['free_memory'])} of {format_bytes(m['memory'])}",
            str(sum(1 for actor in actors if actor["worker"] == m["worker"])),
        )
        for m in machines
    ]
    columns: tuple[str, ...] = _MACHINE_COLUMNS
    if any(m["resources"] for m in machines):
        columns = (*columns, "FREE RESOURCES")
        rows = [(*row, _others(m)) for row, m in zip(rows, machines, strict=True)]
    parts = [head, _table(columns, rows)]
    if actors:
        rows = [
            (
                a["name"],
                a["class"],
                a["machine"],
                str(a["pid"]),
                f"{a['cpu_percent']:.0f}%",
                format_bytes(a["rss"]),
                str(a["calls"]),
                _doing(a),
                str(a["queue"] or ""),
                _duration(now - a["since"]),
                "dialled in" if a["dialled_in"] else _whose(a["owner"]),
            )
            for a in actors
        ]
        parts.append(_table(_ACTOR_COLUMNS, rows))
    if clients := facts["clients"]:
        rows = [
            (
                f"actor {c['actor']}" if c["actor"] else f"pid {c['pid']}",
                c["machine"],
                str(c["actors"]),
            )
            for c in clients
        ]
        parts.append(_table(_CLIENT_COLUMNS, rows))
    return "\n\n".join(parts)


def _others(machine: dict[str, Any]) -> str:
    free = machine["free_resources"]
    return ", ".join(
        f"{free[name]:g} of {amount:g} {name}" for name, amount in machine["resources"].items()
    )


def _doing(actor: dict[str, Any]) -> str:
    if not actor["method"]:
        return ""
    others = f" and {actor['running'] - 1} more" if actor["running"] > 1 else ""
    lends = ", lends its CPUs" if actor["lends"] else ""
    return f"{actor['method']} {_duration(actor['method_s'])}{others}{lends}"


def _whose(owner: dict[str, Any] | None) -> str:
    if owner is None:
        return "detached"
    if owner["actor"]:
        return f"actor {owner['actor']}"
    return f"pid {owner['pid']} on {owner['machine']}" if owner["pid"] else "a client that is away"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (names, *rows)
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
