"""The status of a cluster, one struct from which all else is made: `remotely.status()` returns it,
`remotely status --json` and the dashboard have it as plain data, and `remotely status` as tables.
Pure.
"""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

import msgspec

from remotely.protocol import control
from remotely.protocol.measures import MetricFigures, MetricKind, bound_of, quantile
from remotely.protocol.resources import format_bytes
from remotely.reporting.endings import end_named

JSON_FORMAT = 1  # raised when a name below is removed or changes its meaning, not when one is added
HELP_COLUMN = 18  # where descriptions begin
LONGEST_CELL = 40  # of names and methods
SHOWN_ENDS = 5
_END_COLUMNS = ("ENDED", "CLASS", "MACHINE", "HOW", "AGO", "NOW", "WHY")
_MACHINE_COLUMNS = (
    "MACHINE",
    "ADDRESS",
    "PYTHON",
    "FREE CPUS",
    "FREE GPUS",
    "CPU",
    "MEMORY IN USE",
    "RESERVED",
    "DISK",
    "ACTORS",
)
_CLIENT_COLUMNS = ("CLIENT", "MACHINE", "ACTORS")
_ACTOR_COLUMNS = (
    "ACTOR",
    "CLASS",
    "MACHINE",
    "PID",
    "CPU",
    "MEMORY",
    "CALLS",
    "ERRORS",
    "CALLS/S",
    "BUSY",
    "RUNS",
    "QUEUE",
    "SINCE",
    "WHOSE",
)


def says(words: str) -> msgspec.Meta:
    """Return the description of a field, which `remotely status --help` shows."""
    return msgspec.Meta(description=words)


class MachineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, with memory in bytes; workers on the same machine have the same `host`.

    If it cannot be reached, `away_s` says for how long; if it cannot start actors, `sick` says why
    the last start failed, and `sick_s` since when; if it is being drained, `drains_s` says when it
    leaves.  Then none of its resources are free.
    """

    worker: Annotated[str, says("its id")]
    machine: Annotated[str, says("its name")]
    host: Annotated[str, says("the same for workers that see the same files")]
    address: str
    python: str
    away_s: Annotated[float, says("how long it has been unreachable, else 0")] = 0.0
    sick: Annotated[str, says("why the last start of an actor there failed, else empty")] = ""
    sick_s: Annotated[float, says("for how long starts have failed")] = 0.0
    drains_s: Annotated[float, says("if it is being drained, the time that is left, else 0")] = 0.0
    cpus: Annotated[float, says("that may be reserved there")]
    gpus: int
    memory: Annotated[int, says("bytes")]
    free_cpus: Annotated[
        float,
        says(
            "not reserved; negative if actors hold more than there is, because those that waited "
            "have taken back what they had lent"
        ),
    ]
    free_gpus: float
    free_memory: Annotated[int, says("not reserved; what is in use is `memory_used`")]
    kept_cpus: Annotated[float, says("reserved for a request that waits for more")] = 0
    kept_gpus: float = 0
    pool: Annotated[str, says("the same for workers that draw from the same memory")] = ""
    pool_memory: int = 0
    gpu_ids: Annotated[list[str], says("the same wherever the same GPU is offered")] = []
    resources: Annotated[dict[str, float], says("custom ones")] = {}
    free_resources: dict[str, float] = {}
    labels: list[str] = []
    cpu_percent: Annotated[float, says("of all its cores, in use by whatever runs there")] = 0.0
    memory_used: Annotated[int, says("bytes, as the kernel counts them")] = 0
    memory_total: Annotated[int, says("zero if none of these is known")] = 0
    disk_used: Annotated[int, says("of the disk with the temporary folder")] = 0
    disk_total: Annotated[int, says("in use or available, as `df` counts")] = 0
    gpu_percent: Annotated[
        list[float], says("of each GPU, in use by whatever runs there; empty without its driver")
    ] = []
    gpu_memory_used: list[int] = []
    gpu_memory_total: Annotated[list[int], says("zero of a GPU of which nothing is known")] = []
    cpu_hour: Annotated[
        list[int], says("percentages of the last hour, by minute, oldest first")
    ] = []
    memory_hour: list[int] = []


class MetricStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A metric that the process keeps with `remotely.count`, `gauge` or `histogram`."""

    name: str
    kind: Annotated[MetricKind, says("counter, gauge or histogram")]
    labels: dict[str, str] = {}
    value: Annotated[
        float | None, says("of a histogram, the sum of its values; null if it is no finite number")
    ]
    count: Annotated[int, says("of a histogram: its values")] = 0
    p50: Annotated[float, says("half of them are at most this; within 19 %")] = 0.0
    p99: float = 0.0
    buckets: Annotated[
        list[tuple[float | None, int]],
        says("of a histogram: its buckets with values, each with the greatest that it may hold"),
    ] = []


class ClientStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A script, or an actor that uses the cluster; `actor` is then its name."""

    pid: int
    machine: str
    actor: Annotated[str, says("its name if the client is an actor")]
    session: Annotated[str, says("its id")] = ""
    actors: Annotated[int, says("how many it owns")] = 0
    script: Annotated[str, says("the name of the script")] = ""
    metrics: Annotated[list[MetricStatus], says("only in `clients`, and not of an actor")] = []


class MethodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one method that have ended, since its actor began."""

    method: str
    calls: Annotated[int, says("estimated if most take less than 0.2 ms")]
    mean_s: float
    p99_s: Annotated[float, says("99 % of them took at most this; within 19 %")]
    errors: Annotated[int, says("how many of them ended with an error")] = 0


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An actor: its resources, its usage and its calls."""

    name: str
    class_name: str = msgspec.field(name="class")
    actor: Annotated[str, says("its id")]
    machine: str
    worker: Annotated[str, says("an id of `machines`")]
    pid: int
    cpus: Annotated[float, says("reserved for it")]
    gpus: Annotated[float, says("below 1: a share of one GPU")] = 0
    gpu_ids: Annotated[list[int | str], says("as CUDA names them")]
    memory_limit: Annotated[int, says("bytes; 0 means none")]
    resources: Annotated[dict[str, float], says("custom ones")] = {}
    labels: Annotated[list[str], says("that its machine must have")] = []
    cpu_percent: Annotated[
        float, says("of one core, by its last report: every 2 s, or 16 s if it is idle")
    ]
    rss: Annotated[int, says("bytes, with what it shares with others")]
    memory: Annotated[int, says("bytes of its own, as its limit counts them")] = 0
    calls: Annotated[int, says("completed calls")]
    errors: Annotated[int, says("calls, and items of streams, that ended with an error")] = 0
    running: Annotated[int, says("calls that run now")]
    method: Annotated[str, says("of the call that has run longest; empty if none runs")]
    method_s: Annotated[float, says("how long that call has run")]
    queue: Annotated[int, says("calls that do not run yet")]
    calls_per_s: Annotated[float, says("that ended, over the last seconds")] = 0.0
    busy_percent: Annotated[float, says("of the last seconds in which any call ran")] = 0.0
    received: Annotated[int, says("bytes of arguments")] = 0
    sent: Annotated[int, says("bytes of results")] = 0
    methods: Annotated[
        list[MethodStatus],
        says("those that took the most time, or failed most often; the slowest first"),
    ] = []
    metrics: list[MetricStatus] = []
    lends: Annotated[bool, says("it waits, and its CPUs are free for others meanwhile")] = False
    stopped_at: Annotated[
        str, says("where a call has stopped for `remotely debug`; empty if none has")
    ] = ""
    stopped_s: Annotated[float, says("for how long")] = 0.0
    is_debugged: Annotated[bool, says("a debugger is attached")] = False
    since: Annotated[float, says("seconds since 1970")]
    owner: Annotated[
        ClientStatus | None, says("the actor ends with it; None if detached or dialled in")
    ]
    dialled_in: Annotated[bool, says("by `remotely.serve`")] = False


class WaitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one script for actors of one class, which wait for resources."""

    class_name: str = msgspec.field(name="class")
    count: Annotated[int, says("of requests")]
    waits_s: Annotated[float, says("of the oldest")]
    why: str


class EndStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an actor that nobody had asked for."""

    name: str
    class_name: str = msgspec.field(name="class")
    actor: Annotated[str, says("its id")] = ""
    life: Annotated[int, says("0 is its first")] = 0
    machine: str
    ago_s: float
    lost: Annotated[bool, says("its machine was lost, and nobody saw its end")]
    restarting: Annotated[bool, says("its next life does not run yet")]
    restarted: Annotated[bool, says("its next life runs")] = False
    exit: Annotated[int | str | None, says("its exit code, or the name of a signal")]
    how: Annotated[str, says("in a word or two: SIGKILL, exit code 3, out of memory, lost")] = ""
    why: str
    stderr: Annotated[str, says("its last words")]


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cluster, as `remotely.status()` returns it."""

    address: Annotated[str, says("of the master; empty without a cluster")]
    waiting: Annotated[int, says("requests that wait for resources")]
    waits: list[WaitStatus] = []
    machines: list[MachineStatus]
    clients: list[ClientStatus]
    actors: list[ActorStatus]
    ends: Annotated[list[EndStatus], says("the last ones, newest first")] = []
    ended: Annotated[int, says("how many such ends there were since the master started")] = 0
    last_event: Annotated[int, says("the number of the newest event")] = 0
    counts_cpus: Annotated[
        bool,
        says(
            "an actor that names no `cpus` takes one; if false, as on a script's own cluster, it "
            "takes none, and `free_cpus` is for those that name some"
        ),
    ] = True


def field_help(struct: type = ClusterStatus, indent: int = 0) -> list[str]:
    """Return lines that describe all fields of the JSON."""
    lines = [] if indent else [f"{'format':<{HELP_COLUMN}}{JSON_FORMAT}"]
    pad = " " * indent
    for each in msgspec.structs.fields(struct):
        kinds, words = _parts(each.type)
        inner = [
            kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        ]
        if inner and not words:
            words = (inner[0].__doc__ or "").partition("\n")[0]
        first = f"{pad}{each.encode_name:<{HELP_COLUMN}}"
        rest = " " * (indent + HELP_COLUMN)
        wrapped = textwrap.wrap(words, 88, initial_indent=first, subsequent_indent=rest)
        lines += wrapped or [first.rstrip()]
        if inner:
            lines += field_help(inner[0], indent + 2)
    return lines


def _parts(kind: Any) -> tuple[list[Any], str]:
    """Return the types of which a type consists, and its description."""
    if get_origin(kind) is Annotated:
        kind, meta = get_args(kind)
        return _parts(kind)[0], meta.description
    return [kind, *(part for inner in get_args(kind) for part in _parts(inner)[0])], ""


def as_json(status: ClusterStatus) -> dict[str, Any]:
    """Return what `status --json` prints, documented there."""
    return {"format": JSON_FORMAT, **msgspec.to_builtins(status)}


def event_as_json(event: control.EventStatus, now: float) -> dict[str, Any]:
    """Return what `events --json` prints, documented there; `now` is in seconds since 1970."""
    return {
        "number": event.number,
        "at": round(now - event.ago_s, 3),
        "kind": event.kind,
        "machine": event.machine,
        "actor": event.name,
        "class": event.class_name,
        "text": event.text,
    }


def cluster_status(found: control.Status, address: str, without: str = "") -> ClusterStatus:
    """Return the status as the master has sent it; `without` is a session to omit."""
    actors = [(worker, actor) for worker in found.workers for actor in worker.actors]
    names = {actor.location.actor: actor.location.name for _, actor in actors}
    owned = Counter(actor.request.owner for _, actor in actors)
    owners = {
        client.session: ClientStatus(
            pid=client.pid,
            machine=client.machine,
            actor=names.get(client.actor, client.actor),
            session=client.session,
            actors=owned[client.session],
            script=client.script,
        )
        for client in found.clients
    }
    unseen = ClientStatus(pid=0, machine="", actor="")  # disconnected, and may come back
    return ClusterStatus(
        address=address,
        waiting=found.waiting,
        waits=[WaitStatus(**msgspec.structs.asdict(wait)) for wait in found.waits],
        # A worker without a Python is a process in `remotely.serve`.
        machines=[_machine(worker) for worker in found.workers if worker.python],
        clients=[
            msgspec.structs.replace(
                owners[client.session], metrics=[metric_status(each) for each in client.metrics]
            )
            for client in found.clients
            if client.session != without
        ],
        actors=[
            _actor(actor, worker, owners.get(owner, unseen) if owner else None)
            for worker, actor in actors
            for owner in (actor.request.owner,)
        ],
        ends=[
            EndStatus(how=end_named(end.exit, end.lost, end.why), **msgspec.structs.asdict(end))
            for end in found.ends
        ],
        ended=found.ended,
        last_event=found.last_event,
        counts_cpus=found.counts_cpus,
    )


def metric_status(each: MetricFigures) -> MetricStatus:
    """Return a user's own metric with its quantiles."""
    return MetricStatus(
        name=each.name,
        kind=each.kind,
        labels=each.labels,
        value=each.value,
        count=each.count,
        p50=quantile(each.buckets, 0.5),
        p99=quantile(each.buckets, 0.99),
        buckets=[(bound_of(bucket), number) for bucket, number in sorted(each.buckets.items())],
    )


def _machine(worker: control.WorkerStatus) -> MachineStatus:
    return MachineStatus(
        worker=worker.worker,
        machine=worker.machine,
        host=worker.host,
        address=worker.address,
        python=worker.python,
        away_s=worker.away_s,
        sick=worker.sick,
        sick_s=worker.sick_s,
        drains_s=worker.drains_s,
        cpus=worker.resources.cpus,
        gpus=int(worker.resources.gpus),
        memory=worker.resources.memory,
        pool=worker.shares.pool,
        pool_memory=worker.shares.memory,
        gpu_ids=list(worker.shares.gpus),
        free_cpus=worker.free_cpus,
        free_gpus=_whole(worker.free_gpus),
        free_memory=worker.free_memory,
        kept_cpus=worker.kept_cpus,
        kept_gpus=_whole(worker.kept_gpus),
        resources=dict(worker.resources.others),
        free_resources=worker.free_others,
        labels=list(worker.resources.labels),
        cpu_percent=worker.use.cpu_percent,
        memory_used=worker.use.memory_used,
        memory_total=worker.use.memory_total,
        disk_used=worker.use.disk_used,
        disk_total=worker.use.disk_total,
        gpu_percent=[gpu.percent for gpu in worker.use.gpus],
        gpu_memory_used=[gpu.memory_used for gpu in worker.use.gpus],
        gpu_memory_total=[gpu.memory_total for gpu in worker.use.gpus],
        cpu_hour=list(worker.use.cpu_hour),
        memory_hour=list(worker.use.memory_hour),
    )


def _actor(
    actor: control.ActorStatus, worker: control.WorkerStatus, owner: ClientStatus | None
) -> ActorStatus:
    location, asked, figures = actor.location, actor.request.resources, actor.figures
    return ActorStatus(
        name=location.name,
        class_name=location.class_name,
        actor=location.actor,
        machine=location.machine,
        worker=worker.worker,
        pid=location.pid,
        cpus=asked.cpus,
        gpus=_whole(asked.gpus),
        gpu_ids=[_gpu(worker, gpu) for gpu in actor.gpu_ids],
        memory_limit=asked.memory,
        resources=dict(asked.others),
        labels=list(asked.labels),
        cpu_percent=figures.cpu_percent,
        rss=figures.rss,
        memory=figures.memory,
        calls=figures.calls,
        errors=figures.errors,
        running=figures.running,
        method=figures.method,
        method_s=figures.method_s,
        queue=actor.queue,
        calls_per_s=figures.calls_per_s,
        busy_percent=figures.busy_percent,
        received=figures.received,
        sent=figures.sent,
        methods=[
            MethodStatus(
                method=each.method,
                calls=each.calls,
                mean_s=each.mean_s,
                p99_s=each.p99_s,
                errors=each.errors,
            )
            for each in figures.methods
        ],
        metrics=[metric_status(each) for each in figures.metrics],
        lends=actor.lends,
        stopped_at=figures.stopped_at,
        stopped_s=figures.stopped_s,
        is_debugged=figures.is_debugged,
        since=actor.since,
        owner=owner,
        dialled_in=bool(actor.request.classes),
    )


def _whole(number: float) -> float:
    """Return 2 instead of 2.0, for programs that read the JSON."""
    return int(number) if number == int(number) else number


def _gpu(worker: control.WorkerStatus, gpu: int) -> int | str:
    """Return the CUDA name (as in nvidia-smi) of the cluster's GPU number `gpu`."""
    name = worker.gpu_names[gpu] if gpu < len(worker.gpu_names) else str(gpu)
    return int(name) if name.isdecimal() else name


def totals(machines: Sequence[MachineStatus]) -> dict[str, Any]:
    """Return the total and the free resources of all machines.

    CPUs are summed over workers; memory and GPUs that several workers of a machine offer count
    once.  `memory_used` and `memory_total` are what the kernel says.
    """
    pools: dict[str, list[MachineStatus]] = {}
    devices: dict[tuple[str, ...], list[MachineStatus]] = {}
    for m in machines:
        pools.setdefault(m.pool or m.worker, []).append(m)
        devices.setdefault(tuple(m.gpu_ids) or (m.worker,), []).append(m)
    memory = free_memory = used = there_is = 0
    for same in pools.values():
        offered, there = sum(m.memory for m in same), max(m.pool_memory for m in same)
        is_shared = bool(there) and offered > there
        memory += there if is_shared else offered
        free_memory += (max if is_shared else sum)(m.free_memory for m in same)
        used += max(m.memory_used for m in same)
        there_is += max(m.memory_total for m in same)
    return {
        "cpus": sum(m.cpus for m in machines),
        "free_cpus": sum(m.free_cpus for m in machines),
        "gpus": sum(same[0].gpus for same in devices.values()),
        "free_gpus": sum(max(m.free_gpus for m in same) for same in devices.values()),
        "memory": memory,
        "free_memory": free_memory,
        "memory_used": used,
        "memory_total": there_is,
    }


def tables(status: ClusterStatus, now: float) -> str:
    """Return tables for people; `now` is in seconds since 1970."""
    machines, actors = status.machines, status.actors
    total = totals(machines)
    there = f"{count_of(len(machines), 'machine')}, {count_of(len(actors), 'actor')}"
    head = (
        f"{status.address}: {there}; "
        f"free: {total['free_cpus']:g} of {total['cpus']:g} CPUs, {total['free_gpus']:g} of "
        f"{total['gpus']} GPUs; memory: "
    )
    if total["memory_total"]:
        head += f"{_part(total['memory_used'], total['memory_total'])} in use, "
    head += f"{_part(total['memory'] - total['free_memory'], total['memory'])} reserved"
    if not status.counts_cpus:
        head += "\nOnly actors that name cpus take CPUs here; there may be any number of others"
    for m in machines:
        if m.free_cpus < 0:
            held = f"{m.cpus - m.free_cpus:g} CPUs of {m.cpus:g}"
            head += f"\n{m.machine}: actors hold {held}, until those that others lent are back"
        if m.drains_s:
            head += f"\n{m.machine}: DRAINING, leaves within {duration(m.drains_s)}"
        if m.sick:
            head += f"\n{m.machine}: SICK for {duration(m.sick_s)}, last error: {m.sick}"
    if status.waiting:
        head += f"\n{count_of(status.waiting, 'request')} waiting for room"
        for wait in status.waits:
            head += f"\n  {wait.count} of {wait.class_name}: {wait.why}"
    for a in actors:
        if a.stopped_at:
            head += f"\n{stopped(a)}"
    rows: list[tuple[str, ...]] = [
        (
            m.machine,
            m.address,
            m.python,
            _state(m) or _free(m.free_cpus, m.cpus, m.kept_cpus),
            _free(m.free_gpus, m.gpus, m.kept_gpus),
            f"{m.cpu_percent:.0f}%" if m.memory_total else "",
            _part(m.memory_used, m.memory_total),
            _part(m.memory - m.free_memory, m.memory),
            _part(m.disk_used, m.disk_total),
            str(sum(1 for actor in actors if actor.worker == m.worker)),
        )
        for m in machines
    ]
    columns: tuple[str, ...] = _MACHINE_COLUMNS
    if any(m.resources for m in machines):
        columns = (*columns, "FREE RESOURCES")
        rows = [(*row, _others(m)) for row, m in zip(rows, machines, strict=True)]
    if any(m.gpu_percent for m in machines):
        columns = (*columns, "GPUS IN USE")
        rows = [(*row, _gpus(m)) for row, m in zip(rows, machines, strict=True)]
    if any(m.labels for m in machines):
        columns = (*columns, "LABELS")
        rows = [(*row, " ".join(m.labels)) for row, m in zip(rows, machines, strict=True)]
    parts = [head, _table(columns, rows)]
    if actors:
        rows = [
            (
                cut(a.name),
                cut(a.class_name),
                cut(a.machine),
                str(a.pid),
                f"{a.cpu_percent:.0f}%",
                format_bytes(a.memory),
                str(a.calls),
                str(a.errors or ""),
                f"{a.calls_per_s:.0f}" if a.calls_per_s >= 100 else f"{a.calls_per_s:.3g}",
                f"{a.busy_percent:.0f}%",
                cut(_doing(a)),
                str(a.queue or ""),
                duration(now - a.since),
                "dialled in" if a.dialled_in else cut(_whose(a.owner)),
            )
            for a in actors
        ]
        parts.append(_table(_ACTOR_COLUMNS, rows))
    if clients := status.clients:
        rows = [
            (
                cut(f"actor {c.actor}" if c.actor else _script(c)),
                c.machine,
                str(c.actors),
            )
            for c in clients
        ]
        parts.append(_table(_CLIENT_COLUMNS, rows))
    if ends := status.ends[:SHOWN_ENDS]:
        rows = [
            (
                cut(end.name),
                cut(end.class_name),
                cut(end.machine),
                end.how,
                duration(end.ago_s),
                "runs again" if end.restarted else "is restarted" if end.restarting else "",
                cut(end.why.partition("\n")[0], 2 * LONGEST_CELL),
            )
            for end in ends
        ]
        parts.append(_table(_END_COLUMNS, rows))
        if (more := status.ended - len(ends)) > 0:
            parts[-1] += f"\nand {more} more since the master started: remotely events"
    return "\n\n".join(parts)


def stopped(actor: ActorStatus) -> str:
    """Return a sentence about an actor that has stopped for a debugger."""
    text = f"{cut(actor.name)}: STOPPED for {duration(actor.stopped_s)} at {actor.stopped_at}"
    if actor.is_debugged:
        return f"{text}, a debugger is attached"
    return f"{text}, waits for: remotely debug {actor.name}"


def _state(machine: MachineStatus) -> str:
    """Return why nothing is placed on a machine; empty if it is well."""
    if machine.away_s:
        return f"AWAY {duration(machine.away_s)}"
    if machine.drains_s:
        return f"DRAINING {duration(machine.drains_s)}"
    return f"SICK {duration(machine.sick_s)}" if machine.sick else ""


def _gpus(machine: MachineStatus) -> str:
    return ", ".join(f"{percent:.0f}%" for percent in machine.gpu_percent)


def _part(used: int, there: int) -> str:
    return f"{format_bytes(used)} of {format_bytes(there)}" if there else ""


def _others(machine: MachineStatus) -> str:
    free = machine.free_resources
    return ", ".join(
        f"{free[name]:g} of {amount:g} {name}" for name, amount in machine.resources.items()
    )


def _doing(actor: ActorStatus) -> str:
    if not actor.method:
        return ""
    others = f" and {actor.running - 1} more" if actor.running > 1 else ""
    lends = ", lends its CPUs" if actor.lends else ""
    return f"{actor.method} {duration(actor.method_s)}{others}{lends}"


def _whose(owner: ClientStatus | None) -> str:
    if owner is None:
        return "detached"
    if owner.actor:
        return f"actor {owner.actor}"
    return f"{_script(owner)} on {owner.machine}" if owner.pid else "a client that is away"


def _script(client: ClientStatus) -> str:
    return f"pid {client.pid} ({client.script})" if client.script else f"pid {client.pid}"


def _free(free: float, there: float, kept: float) -> str:
    waits = f" ({kept:g} kept for a waiting request)" if kept else ""
    return f"{free:g} of {there:g}{waits}"


def cut(text: str, longest: int = LONGEST_CELL) -> str:
    """Return a text that is at most so long, cut in its middle: names often differ at the end."""
    if len(text) <= longest:
        return text
    end = longest // 2
    return f"{text[: longest - end - 1]}…{text[-end:]}"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (names, *rows)
    )


def count_of(number: int, noun: str) -> str:
    """Return "1 actor" or "2 actors"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time in the largest unit that fits, as "9 min"."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
