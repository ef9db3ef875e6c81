"""Registration of a worker that has actors, with a restarted master or again with the same one.

The master holds nothing that the workers do not know; after a restart it learns its actors here.  A
worker that was cut off receives what it missed: an actor that it has to start or to end.
"""

from typing import NamedTuple

from remotely.master import guests, sickness
from remotely.master.actors import (
    LifeEvent,
    adopt_move,
    apply_event,
    close,
    end_life,
    handle_spawned,
    handle_stay,
    request_actor,
    retry_requests,
)
from remotely.master.state import ActorRecord, State, UnknownActor
from remotely.protocol import control


class Reported(NamedTuple):
    """An actor that a worker reports when it registers, or one that it is about to start."""

    request: control.Request
    gpu_ids: list[int]
    seal: bytes  # of its placement
    status: control.ActorStatus | None = None  # once it has started
    again: bool = False


def reported_by(register: control.Register) -> dict[str, Reported]:
    """Return the actors of a worker; of two lives of an actor, the later one."""
    started = {s.request.actor: Reported(s.request, s.gpu_ids, s.seal, s) for s in register.actors}
    births = {
        b.request.actor: Reported(b.request, b.gpu_ids, b.seal, None, b.again)
        for b in register.births
    }
    return {**started, **births}


def adopt_all(state: State, register: control.Register, is_new: bool) -> None:
    """Adopt the actors of a worker, before anything else can be placed on it."""
    all_reported, worker = reported_by(register).values(), register.worker
    for reported in all_reported:
        is_guest = guests.is_guest(register) and reported.request.actor == worker
        if is_guest or _is_ours(state, worker, reported):
            _adopt_if_wanted(state, worker, reported, is_new)
    for reported in all_reported:
        _answer_unknown(state, reported.request)


def reconcile(state: State, register: control.Register) -> None:
    """Reconcile what was lost while a worker's connection was broken."""
    name, table = register.worker, state.actors
    all_reported = reported_by(register)
    if (sick := state.workers.sick.get(name)) is not None:
        sick.given_up &= set(all_reported)
    for record in table.on_worker(name):
        _reconcile_actor(state, record, all_reported.get(record.request.actor))
    for actor, reported in all_reported.items():
        if not table.is_on(actor, name):  # given up, or placed elsewhere meanwhile
            state.send(name, control.End(actor=actor, grace_s=0.0, kill=True))
        elif reported.status is not None and reported.status.delegate:
            delegate(state, actor, reported.status.delegate)


def handle_death(
    state: State, worker: str, obituary: control.Obituary, lived: control.ActorStatus | None
) -> None:
    """Handle the end of an actor, which this master may not know if it was down at the time."""
    sickness.note_ended(state, worker, obituary.actor)
    is_unknown = state.is_recovering and obituary.actor not in state.actors.records
    if lived is not None and is_unknown:
        reported = Reported(lived.request, lived.gpu_ids, lived.seal, lived)
        if _is_ours(state, worker, reported):
            _adopt_if_wanted(state, worker, reported, is_new=True)
    if state.actors.is_on(obituary.actor, worker):
        end_life(state, obituary)
    if lived is not None:
        _answer_unknown(state, lived.request)


def delegate(state: State, actor: str, key: bytes) -> None:
    """Admit an actor's own key as a delegate, if the actor has started."""
    record = state.actors.records[actor]
    if record.location is not None:
        state.delegates.delegate(record.worker, record.request, key)


def _answer_unknown(state: State, request: control.Request) -> None:
    """Retry the requests about an actor that a restarted master did not know, or about its name."""
    retry_requests(state, state.deferred.release(UnknownActor(request.actor)))
    retry_requests(state, state.deferred.release(UnknownActor("", request.name)))


def _is_ours(state: State, worker: str, reported: Reported) -> bool:
    """Return whether this master or an earlier one placed an actor on a worker."""
    seals = state.admission.seals
    return seals.is_ours(worker, reported.request, reported.gpu_ids, reported.seal)


def _adopt_if_wanted(state: State, worker: str, reported: Reported, is_new: bool) -> None:
    """Adopt an actor if it should go on, and if its name is free or becomes so."""
    if (
        state.admission.may_live(reported.request)
        and _is_wanted(state, worker, reported, is_new)
        and _takes_its_name(state, reported)
    ):
        _adopt(state, worker, reported)


def _takes_its_name(state: State, reported: Reported) -> bool:
    """Return whether an actor may have its name.  If two workers come back to a restarted master
    with actors of one name, the older of these keeps it, and the other is ended."""
    if (holder := state.name_holder(reported.request)) is None:
        return True
    record, status = state.actors.records.get(holder.actor), reported.status
    if record is None or status is None or not state.is_recovering or record.request.classes:
        return False
    if record.location is not None and record.since <= status.since:
        return False
    close(state, control.End(actor=holder.actor, grace_s=0.0, kill=True))
    state.actors.free_name(holder)
    return True


def _is_wanted(state: State, worker: str, reported: Reported, is_new: bool) -> bool:
    """Return whether an actor that was not known to be on a worker should go on there.

    It should if its worker is new to this master and the actor was not given up, or if the same
    life is still waiting for room or starting elsewhere, so that no client knows of it.
    """
    actor, life = reported.request.actor, reported.request.life
    if (waiter := state.waiting.get(actor)) is not None:
        return waiter.request.life == life
    record = state.actors.records.get(actor)
    if record is None:
        return is_new and actor not in state.actors.deaths
    if record.worker == worker:
        return False
    if record.request.life == life:
        return reported.status is not None and record.location is None
    return is_new and life > record.request.life


def _adopt(state: State, worker: str, reported: Reported) -> None:
    request, gpu_ids, _, status, again = reported
    waiter, elsewhere = state.waiting.get(request.actor), state.actors.records.get(request.actor)
    record = ActorRecord(request, worker, gpu_ids, again=again)
    state.workers.ledger.allocate(worker, request.resources, tuple(gpu_ids))
    if elsewhere is not None and elsewhere.request.life == request.life:
        apply_event(state, LifeEvent.MOVED, elsewhere, record)
    else:
        if elsewhere is not None:
            apply_event(state, LifeEvent.REPLACED, elsewhere, elsewhere.lost(restarting=True))
        apply_event(state, LifeEvent.ADOPTED, record)
    if status is not None:
        handle_spawned(state, worker, status.location, status.since)
        if status.moves and state.actors.is_on(request.actor, worker):
            adopt_move(state, record)
    if waiter is not None:
        request_actor(state, waiter.session, waiter.place)


def _reconcile_actor(state: State, record: ActorRecord, reported: Reported | None) -> None:
    """Reconcile the record of an actor with the report of its worker, which was away."""
    if reported is None or reported.request.life != record.request.life:
        if record.ends_within_s is not None:
            end_life(state, record.closed())
        elif record.location is not None:
            end_life(state, record.lost(moved=record.is_moving))
        else:
            apply_event(state, LifeEvent.ABSENT, record)
        return
    if record.location is None and reported.status is not None:
        handle_spawned(state, record.worker, reported.status.location, reported.status.since)
    moves = reported.status is not None and reported.status.moves
    if record.is_moving and not moves and record.worker not in state.workers.draining:
        handle_stay(state, record)  # its worker has heard that the drain was undone
    apply_event(state, LifeEvent.PRESENT, record)
