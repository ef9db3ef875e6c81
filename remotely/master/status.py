"""What a status tells of each peer: of a worker what it has, what is free and who lives there."""

from collections import Counter

from remotely.master.fleet import Machine
from remotely.master.roster import Record
from remotely.master.state import State
from remotely.protocol import control
from remotely.protocol.resources import Resources


def status(ticket: int, state: State) -> control.Status:
    """Return what `remotely status` shows."""
    ledger, roster = state.fleet.ledger, state.roster
    unanswered: Counter[str] = Counter()
    for session in state.sessions:
        unanswered.update(session.unanswered)
    return control.Status(
        ticket=ticket,
        workers=[
            _of_worker(name, machine, ledger.free(name), roster.at(name), unanswered)
            for name, machine in sorted(state.fleet.machines.items())
        ],
        clients=[_of_client(session.hello) for session in state.sessions],
        waiting=len(state.waiting),
    )


def _of_client(hello: control.Hello) -> control.ClientStatus:
    return control.ClientStatus(
        session=hello.session, machine=hello.machine, pid=hello.pid, actor=hello.actor
    )


def _of_worker(
    name: str,
    machine: Machine,
    free: Resources,
    records: list[Record],
    unanswered: Counter[str],
) -> control.WorkerStatus:
    register = machine.register
    return control.WorkerStatus(
        worker=name,
        machine=register.machine,
        host=register.host,
        address=register.address,
        python=register.python,
        cpus=register.cpus,
        gpus=register.gpus,
        gpu_names=register.gpu_names,
        memory=register.memory,
        free_cpus=free.cpus,
        free_gpus=int(free.gpus),
        free_memory=free.memory,
        actors=[
            _of_actor(
                record,
                record.location,
                machine.reports.get(actor := record.request.actor, control.Figures(actor=actor)),
                unanswered[actor],
            )
            for record in records
            if record.location is not None
        ],
    )


def _of_actor(
    record: Record, location: control.Location, figures: control.Figures, unanswered: int
) -> control.ActorStatus:
    return control.ActorStatus(
        location=location,
        request=record.request,
        gpu_ids=record.gpu_ids,
        calls=figures.calls,
        cpu_percent=figures.cpu_percent,
        rss=figures.rss,
        running=figures.running,
        method=figures.method,
        method_s=figures.method_s,
        queue=min(max(0, unanswered - figures.running), control.MOST),  # of clients that may lie
        since=record.since,
    )
