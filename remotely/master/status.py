"""The status of a cluster: workers, resources, actors, waiting requests and unexpected ends."""

from collections import Counter

import msgspec

from remotely.master import draining, shortage
from remotely.master.ledger import Ledger
from remotely.master.state import ActorRecord, ClientSession, State, WorkerRecord
from remotely.master.waiting import Waiter
from remotely.protocol import control
from remotely.protocol.resources import Resources

SHOWN_WAITS = 8  # groups of requests; the reason of each costs a search


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
                _kept(name, ledger),
                _away_s(name, state),
                *_sick(name, state),
                draining.left_s(state, name),
                actors.on_worker(name),
                unanswered,
            )
            for name, worker in sorted(state.workers.records.items())
        ],
        clients=[_of_client(each) for each in state.sessions if not each.is_viewer],
        waiting=len(state.waiting),
        waits=_waits(state),
        ends=[_as_of_now(end, state) for end in state.history.ends(state.now)],
        ended=state.history.ended,
        last_event=state.history.last,
        counts_cpus=state.counts_cpus,
    )


def _as_of_now(end: control.EndStatus, state: State) -> control.EndStatus:
    record = state.actors.records.get(end.actor)
    restarted = record is not None and record.request.life > end.life and bool(record.location)
    is_to_live = record is not None or end.actor in state.restarts.pending
    return msgspec.structs.replace(
        end, restarting=end.restarting and is_to_live and not restarted, restarted=restarted
    )


def _waits(state: State) -> list[control.WaitStatus]:
    """Return the waiting requests, grouped by script and class."""
    lines: dict[tuple[str, str], list[Waiter]] = {}
    for waiter in state.waiting:
        lines.setdefault((waiter.request.job, waiter.request.class_name), []).append(waiter)
    return [
        control.WaitStatus(
            class_name=line[0].request.class_name,
            count=len(line),
            waits_s=max(0.0, state.now - line[0].since),
            why=shortage.why_it_waits(line[0].request, state),
        )
        for line in list(lines.values())[:SHOWN_WAITS]
    ]


def _free(worker: str, ledger: Ledger) -> Resources:
    """Return the resources that can be allocated on a worker."""
    if not ledger.is_open(worker):
        return Resources()
    free = ledger.free(worker)
    return free.clamped() if worker in ledger.reserved_on else free


def _kept(worker: str, ledger: Ledger) -> tuple[float, float]:
    """Return the CPUs and GPUs that are kept on a worker for a waiting request: it holds none."""
    if not ledger.is_open(worker):
        return 0, 0
    kept = [asked for placement, asked in ledger.reserved if placement.worker == worker]
    free = ledger.free(worker)
    cpus, gpus = sum(asked.cpus for asked in kept), sum(asked.gpus for asked in kept)
    return (
        max(0, free.cpus + cpus) - max(0, free.cpus),
        max(0, free.gpus + gpus) - max(0, free.gpus),
    )


def _away_s(worker: str, state: State) -> float:
    """Return for how long a worker has been unreachable; zero if it is reachable."""
    is_away = state.workers.ledger.is_away(worker)
    return max(0.001, state.leases.silent_s(worker, state.now)) if is_away else 0.0


def _sick(worker: str, state: State) -> tuple[str, float]:
    """Return why starts on a worker fail, and for how long they have failed."""
    sick = state.workers.sick.get(worker)
    return (sick.why, max(0.001, state.now - sick.since)) if sick else ("", 0.0)


def _of_client(session: ClientSession) -> control.ClientStatus:
    hello = session.hello
    return control.ClientStatus(
        session=hello.session,
        machine=hello.machine,
        pid=hello.pid,
        actor=hello.actor,
        script=hello.script,
        metrics=list(session.metrics),
    )


def _of_worker(
    worker: WorkerRecord,
    free: Resources,
    kept: tuple[float, float],
    away_s: float,
    sick: str,
    sick_s: float,
    drains_s: float,
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
        shares=register.shares,
        away_s=away_s,
        sick=sick,
        sick_s=sick_s,
        drains_s=drains_s,
        use=worker.use,
        free_cpus=free.cpus,
        free_gpus=free.gpus,
        kept_cpus=kept[0],
        kept_gpus=kept[1],
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
        request=record.request.without_secrets(),  # viewers see this
        gpu_ids=record.gpu_ids,
        figures=figures,
        queue=min(max(0, unanswered - figures.running), control.MOST),  # of clients that may lie
        since=record.since,
        lends=record.lends,
    )
