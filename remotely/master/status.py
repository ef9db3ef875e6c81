"""The status of a cluster: what each worker has, what is free, and which actors live there."""

from collections import Counter

from remotely.master.ledger import Ledger
from remotely.master.state import ActorRecord, State, WorkerRecord
from remotely.protocol import control
from remotely.protocol.resources import Resources


def status(ticket: int, state: State) -> control.Status:
    """Return what `remotely status` shows."""
    ledger, actors = state.workers.ledger, state.actors
    unanswered: Counter[str] = Counter()
    for session in state.sessions:
        unanswered.update(session.unanswered)
    return control.Status(
        ticket=ticket,
        workers=[
            _of_worker(
                worker,
                _free(name, ledger),
                _away_s(name, state),
                actors.on_worker(name),
                unanswered,
            )
            for name, worker in sorted(state.workers.records.items())
        ],
        clients=[_of_client(session.hello) for session in state.sessions],
        waiting=len(state.waiting),
    )


def _free(worker: str, ledger: Ledger) -> Resources:
    """Return what can be had on a worker."""
    if worker in ledger.away:
        return Resources()
    free = ledger.free(worker)
    return free.at_least_none() if worker in ledger.keepers else free


def _away_s(worker: str, state: State) -> float:
    """Return for how long a worker could not be reached; zero says that it can."""
    is_away = worker in state.workers.ledger.away
    return max(0.001, state.leases.silent_s(worker, state.now)) if is_away else 0.0


def _of_client(hello: control.Hello) -> control.ClientStatus:
    return control.ClientStatus(
        session=hello.session, machine=hello.machine, pid=hello.pid, actor=hello.actor
    )


def _of_worker(
    worker: WorkerRecord,
    free: Resources,
    away_s: float,
    records: list[ActorRecord],
    unanswered: Counter[str],
) -> control.WorkerStatus:
    register = worker.register
    return control.WorkerStatus(
        worker=register.worker,
        machine=register.machine,
        host=register.host,
        address=register.address,
        python=register.python,
        resources=register.resources,
        gpu_names=register.gpu_names,
        away_s=away_s,
        free_cpus=free.cpus,
        free_gpus=free.gpus,
        free_memory=free.memory,
        free_others={name: free.amount_of(name) for name, _ in register.resources.others},
        actors=[
            _of_actor(
                record,
                record.location,
                worker.reports.get(actor := record.request.actor, control.Figures(actor=actor)),
                unanswered[actor],
            )
            for record in records
            if record.location is not None
        ],
    )


def _of_actor(
    record: ActorRecord, location: control.Location, figures: control.Figures, unanswered: int
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
