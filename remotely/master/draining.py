"""Machines that are being drained: they leave, and what can move away does so first.

An operator asks for it (`remotely drain`), or the worker was sent SIGTERM and says so itself.  Then
nothing new is placed there (`WhyClosed.DRAINING`), and

    an actor that its maker    moves as soon as another machine has room, which is kept for it.  Its
    can make again             clients keep their further calls for its next life, it ends after
                               those that it was sent, and the maker makes that life.  A move is no
                               restart that counts
    any other actor            works until it ends, or the time is up

The worker leaves when it has no actor left, or when the time is up: it has its own clock, because
who sent the SIGTERM will not wait.  What is left is lost with it, and what can be made again is,
wherever there is room then.

The worker knows until when it is drained, and tells a restarted master.  Pure.  Refused: to move
detached actors whose maker has gone.  Their class and arguments are in a file of that machine.
"""

from remotely.master.ledger import WhyClosed
from remotely.master.state import ActorRecord, KeptRoom, State
from remotely.protocol import control

WHY_LOST = "it was drained"  # said of the machine


def begin(state: State, worker: str, within_s: float) -> None:
    """Place nothing new on a worker from now on; it leaves within this time."""
    is_new = worker not in state.workers.draining
    state.workers.draining[worker] = state.now + within_s
    state.workers.ledger.close(worker, WhyClosed.DRAINING)
    if is_new:
        machine = state.workers.records[worker].register.machine
        text = f"{machine} is being drained: it leaves within {within_s:.0f} s, and gets no actors"
        state.note("draining", machine, text, is_logged=True)
        jobs = {record.request.job for record in state.actors.on_worker(worker)}
        for job in jobs & {each.hello.session for each in state.sessions}:
            state.send(job, control.Notice(text=text))


def undo(state: State, worker: str) -> None:
    """Use a worker as before."""
    if state.workers.draining.pop(worker, None) is not None:
        state.workers.ledger.reopen(worker, WhyClosed.DRAINING)
        machine = state.workers.records[worker].register.machine
        state.note("undrained", machine, f"{machine} is not drained any more", is_logged=True)


def left_s(state: State, worker: str) -> float:
    """Return the time until a worker leaves; zero if it is not being drained."""
    until = state.workers.draining.get(worker)
    return 0.0 if until is None else max(0.001, until - state.now)


def workers_on(state: State, machine: str) -> list[str]:
    """Return the workers that are meant by the name or address of a machine, or by an id."""
    found = [machine] if machine in state.workers else state.workers.on_machine(machine)
    records = state.workers.records
    return [name for name in found if name in records and records[name].register.python]


def is_movable(state: State, record: ActorRecord) -> bool:
    """Return whether somebody can make the next life of an actor on another machine."""
    return bool(record.request.max_restarts) and state.has_maker(record.request)


def keep_room(state: State, record: ActorRecord) -> bool:
    """Keep room for the next life of an actor on another machine; return whether there is any."""
    request = record.request
    placement = state.workers.ledger.place(
        request.resources, request.python, state.workers_for(request)
    )
    if placement is not None:
        record.next_room = KeptRoom(*placement, request.resources)
    return placement is not None


def release_room(state: State, record: ActorRecord) -> None:
    """Release the room that is kept for the next life of an actor, if there is any."""
    if (room := record.next_room) is not None:
        record.next_room = None
        state.workers.ledger.release(room.worker, room.resources, room.gpu_ids)


def release_rooms_on(state: State, worker: str) -> None:
    """Release the room that is kept on a worker which is about to be removed."""
    for draining in state.workers.draining:
        for record in state.actors.on_worker(draining):
            if record.next_room is not None and record.next_room.worker == worker:
                release_room(state, record)
