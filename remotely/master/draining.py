"""Machines that are being drained: they leave, and what can move away does so first.

An operator asks for it (`remotely drain`), or the worker was sent SIGTERM and says so itself.  Then
nothing new is placed there (`WhyClosed.DRAINING`), and

    an actor that its maker    moves while another machine has room.  Its clients keep their further
    can make again             calls for its next life, it ends after those that it was sent, and
                               the maker makes that life.  A move is no restart that counts
    any other actor            works until it ends, or the time is up

No room is reserved for a move.  Instead, the next life of an actor that has moved waits for room
for as long as its maker lives (`Place.waits_without_limit`): if others took the room, if that
machine is drained too, or if the time was up before any had room.

The worker leaves when it has no actor left, or when the time is up: it has its own clock, because
who sent the SIGTERM will not wait.  What is left is lost with it, and what can be made again is,
wherever there is room then.

A move may be withdrawn until the actor is asked to end: the master asks (`Stay`), and as soon as
the worker agrees, clients send their calls again.  There are three reasons:

    the maker is gone          nobody could make the next life
    the drain was undone       the worker withdraws all moves that it can
    it takes too long          a call that runs may wait for another that is kept for the next life,
                               as one waits at a barrier.  So a move is tried for FIRST_TRY_S, then
                               calls go through for MOVE_PAUSE_S, and each further try is twice
                               as long

The worker knows until when it is drained, and which of its actors move, and tells a restarted
master.  An undone drain is remembered until the worker has heard of it.  Pure.  Refused: to move
detached actors whose maker has gone.  Their class and arguments are in a file of that machine.
"""

from collections.abc import Iterator

from remotely.master.ledger import WhyClosed
from remotely.master.state import ActorRecord, State
from remotely.protocol import control

WHY_LOST = "it was drained"  # said of the machine
FIRST_TRY_S, MOVE_PAUSE_S = 3.0, 1.0  # of a move


def begin(state: State, worker: str, within_s: float, must_leave: bool = False) -> None:
    """Place nothing new on a worker from now on; it leaves within this time.

    `must_leave`: it was sent SIGTERM, so this cannot be undone.
    """
    is_new = worker not in state.workers.draining
    state.workers.undone.discard(worker)
    if must_leave:
        state.workers.must_leave.add(worker)
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
    """Use a worker as before, and remember that until it has heard of it (`confirm_undone`)."""
    if state.workers.draining.pop(worker, None) is not None:
        state.workers.undone.add(worker)
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


def confirm_undone(state: State, worker: str) -> None:
    """Note that a worker knows that it is not drained any more."""
    state.workers.undone.discard(worker)


def is_movable(state: State, record: ActorRecord) -> bool:
    """Return whether somebody is there to make the next life of an actor on another machine."""
    request = record.request
    is_there = request.maker in state.sessions and state.has_maker(request)
    return bool(request.max_restarts) and is_there


def tell_moves(state: State, client: str) -> None:
    """Tell a client that is back which of the actors that it watches move."""
    for actor in state.actors.by_watcher.of(client):
        record = state.actors.records[actor]
        if record.is_moving and record.ends_within_s is None:
            state.send(client, control.Moving(actor=actor, life=record.request.life))


def to_withdraw(state: State) -> list[ActorRecord]:
    """Return the actors whose move is to be withdrawn."""
    moving = (record for record in _on_drained(state) if record.is_moving)
    return [
        record
        for record in moving
        if state.now >= record.move_until or not (state.is_recovering or is_movable(state, record))
    ]


def to_move(state: State) -> list[ActorRecord]:
    """Return the actors whose move can begin, because another machine has room for them now.

    Those that move already are placed first, for this moment: they will need room too.
    """
    candidates = [record for record in _on_drained(state) if _may_move(record)]
    candidates = [r for r in candidates if state.now >= r.move_until and is_movable(state, r)]
    if not candidates:
        return []
    ledger = state.workers.ledger
    taken, found = [], []
    full: set[tuple[object, ...]] = set()  # kinds of requests for which there is no room
    moving = (record.request for record in _on_drained(state) if record.is_moving)
    moved = (each.request for each in state.restarts.pending.values() if each.obituary.moved)
    under_way = [*moving, *(each for each in moved if each.actor not in state.actors.records)]
    for record in (*map(ActorRecord, under_way), *candidates):
        request = record.request
        kind = request.resources, request.python, request.machine, request.near
        among = _well(state, state.workers_for(request))
        room = None
        if kind not in full:
            room = ledger.place(request.resources, request.python, among, request.packs)
        if room is None:
            full.add(kind)
            continue
        taken.append((room, request.resources))
        if record.worker:
            found.append(record)
    for room, resources in taken:
        ledger.release(room.worker, resources, room.gpu_ids)
    return found


def _on_drained(state: State) -> Iterator[ActorRecord]:
    for worker in state.workers.draining:
        yield from state.actors.on_worker(worker)


def _may_move(record: ActorRecord) -> bool:
    is_ending = record.ends_within_s is not None
    return record.location is not None and not record.is_moving and not is_ending


def _well(state: State, among: set[str] | None) -> set[str] | None:
    """Return those of some workers that are not sick: one that is on trial may fail."""
    if not state.workers.sick:
        return among
    return (state.workers.records.keys() if among is None else among) - state.workers.sick.keys()
