"""Sick machines: those on which actors cannot be started.

Room is arithmetic on what workers claim; this is what placement learns from what they do.  A start
fails before the constructor of the actor runs if its machine cannot start a process (no descriptor,
no process, no space is left, or its folder is gone), or if none of its starts has had an outcome
for STUCK_S.  That is the machine's fault.  It ends no life: the request is placed elsewhere, or
waits, and the next life of a detached actor is tried again where it was.

    healthy    a start fails -> benched, if its request goes on; else the machine is only noted as
               sick.  So a machine that is alone is tried by each request, which fails with its
               error
    benched    nothing is placed there for BENCH_S, and as long as a process of a start that was
               given up may still be there.  Then it is
    on trial   the next actor that fits is placed there.  It starts -> healthy; it fails -> benched
               for twice as long, at most BENCH_MOST_S

A start that had begun before its machine was benched neither heals it nor counts against it.

Pure.  Refused: trials by the worker itself, of a process that does nothing (what fails may be what
an actor needs and that process does not: a port, a log file); and to blame a machine for an actor
whose own environment variables may have ended its interpreter.
"""

from remotely.master.ledger import WhyClosed
from remotely.master.state import ActorRecord, Sickness, State
from remotely.protocol import control
from remotely.protocol.lease import BENCH_MOST_S, BENCH_S, EXPECTED_S, STUCK_S


def goes_on(state: State, record: ActorRecord) -> bool:
    """Return whether an actor that its machine did not start is tried again, here or elsewhere."""
    request = record.request
    if state.is_closing or record.ends_within_s is not None:
        return False
    if record.requester is None:  # its worker starts the next life, or nobody waits for it
        since = state.now if record.unstarted_at is None else record.unstarted_at
        return record.again and state.now < since + EXPECTED_S
    if record.requester.session not in state.sessions:
        return False
    unfit = {*state.workers.sick, *state.workers.draining, record.worker}
    needs = request.resources, request.python, state.workers_for(request), unfit
    return bool(request.life or state.is_recovering or state.workers.ledger.could_place(*needs))


def blame(state: State, record: ActorRecord, why: str, is_benched: bool) -> None:
    """Record that a machine did not start an actor; `is_benched`: nothing is placed there now."""
    worker, now = record.worker, state.now
    machine = state.workers.records[worker].register.machine
    if (sick := state.workers.sick.get(worker)) is None:
        sick = state.workers.sick[worker] = Sickness(now)
        if is_benched:
            text = f"{machine} is sick, and gets no actors until it can start them: {why}"
            state.note("sick", machine, text, is_logged=True)
            state.send(record.request.job, control.Notice(text=text))
    sick.why = why
    is_trial = sick.trial == record.request.actor
    if is_trial:
        sick.trial = ""
    if is_benched or sick.pause_s:
        if is_trial or not sick.pause_s:
            sick.pause_s = min(BENCH_MOST_S, 2 * sick.pause_s) or BENCH_S
            sick.until = now + sick.pause_s
        state.workers.ledger.close(worker, WhyClosed.SICK)


def note_placed(state: State, record: ActorRecord) -> None:
    """Record that a start begins on a worker."""
    worker = record.worker
    sick = state.workers.sick.get(worker)
    if sick is not None and not sick.trial:
        sick.trial = record.request.actor
    if sick is not None or state.actors.starting.count(worker) == 1:
        note_outcome(state, worker)


def note_outcome(state: State, worker: str) -> None:
    """Record that a start on a worker has had an outcome: the worker makes progress."""
    if (machine := state.workers.records.get(worker)) is not None:
        machine.start_heard_at = state.now


def note_started(state: State, record: ActorRecord) -> bool:
    """Record that an actor has started; return whether its worker was sick, and no longer is."""
    worker = record.worker
    note_outcome(state, worker)
    sick = state.workers.sick.get(worker)
    if sick is None or (sick.pause_s and sick.trial != record.request.actor):
        return False
    del state.workers.sick[worker]
    state.workers.ledger.heal(worker)
    if sick.pause_s:
        machine = state.workers.records[worker].register.machine
        state.note("well", machine, f"{machine} starts actors again", is_logged=True)
    return True


def note_given_up(state: State, record: ActorRecord) -> None:
    """Record that a start was given up whose process the worker may still start."""
    if (sick := state.workers.sick.get(record.worker)) is not None:
        sick.given_up.add(record.request.actor)


def note_ended(state: State, worker: str, actor: str) -> None:
    """Record that nothing is left of an actor on a worker."""
    if (sick := state.workers.sick.get(worker)) is not None:
        sick.given_up.discard(actor)


def overdue(state: State) -> list[ActorRecord]:
    """Return the starts of the workers that have been silent about them for STUCK_S."""
    found = []
    for worker in list(state.actors.starting):
        machine = state.workers.records[worker]
        is_due = state.now >= machine.start_heard_at + STUCK_S
        if is_due and not state.workers.ledger.is_away(worker):
            note_outcome(state, worker)
            found += [state.actors.records[actor] for actor in state.actors.starting.of(worker)]
    return found


def due_for_trial(state: State) -> list[str]:
    """Return the workers that have been benched long enough."""
    for worker, sick in state.workers.sick.items():
        if not state.actors.is_starting(sick.trial, worker):
            sick.trial = ""  # it was closed, or placed elsewhere: that says nothing
    return [
        worker
        for worker, sick in state.workers.sick.items()
        if sick.pause_s and state.now >= sick.until and not sick.trial and not sick.given_up
    ]


def retries(state: State, worker: str) -> list[ActorRecord]:
    """Return the actors whose next life this worker could not start."""
    starting = (state.actors.records[actor] for actor in state.actors.starting.of(worker))
    return [record for record in starting if record.is_between_tries]
