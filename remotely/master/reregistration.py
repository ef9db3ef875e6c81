"""The registration of a worker, at the master that it knew or at a new one: what it brings along.

A master holds nothing that a worker does not know: after a restart it learns its actors from here.
A worker that was cut off finds here what it missed: an actor that it was to make or to end.
"""

from typing import NamedTuple

from remotely.master.actors import (
    Event,
    answer,
    ask,
    die,
    happen,
    spawned,
)
from remotely.master.state import ActorRecord, State, Unknown
from remotely.protocol import control


class Brought(NamedTuple):
    """What a worker has when it says who it is: an actor, or one about to be born."""

    request: control.Request
    gpu_ids: list[int]
    seal: bytes  # of its placement
    status: control.ActorStatus | None = None  # of one that is born
    again: bool = False


def brought_by(register: control.Register) -> dict[str, Brought]:
    """Return what a worker has, by actor: of two lives the one to come."""
    born = {s.request.actor: Brought(s.request, s.gpu_ids, s.seal, s) for s in register.actors}
    births = {
        b.request.actor: Brought(b.request, b.gpu_ids, b.seal, None, b.again)
        for b in register.births
    }
    return {**born, **births}


def adopt_all(state: State, register: control.Register, is_new: bool) -> None:
    """Enter the actors that a worker brings, before anything else can be placed on it."""
    all_brought = brought_by(register).values()
    for brought in all_brought:
        _adopt_if_wanted(state, register.worker, brought, is_new)
    for brought in all_brought:
        _answer_unknown(state, brought.request)


def settle(state: State, register: control.Register) -> None:
    """Make right what was lost on the way while a worker's connection was broken."""
    name, table = register.worker, state.actors
    all_brought = brought_by(register)
    for record in table.on_worker(name):
        _reconcile(state, record, all_brought.get(record.request.actor))
    for actor, brought in all_brought.items():
        if not table.is_on(actor, name):  # given up, or made elsewhere meanwhile
            state.tell(name, control.End(actor=actor, grace_s=0.0, kill=True))
        elif brought.status is not None and brought.status.delegate:
            delegate(state, actor, brought.status.delegate)


def hear_death(
    state: State, worker: str, obituary: control.Obituary, lived: control.ActorStatus | None
) -> None:
    """An actor has ended: perhaps while there was no master, so that we never heard of it."""
    is_unknown = state.is_learning and obituary.actor not in state.actors.records
    if lived is not None and is_unknown:
        brought = Brought(lived.request, lived.gpu_ids, lived.seal, lived)
        _adopt_if_wanted(state, worker, brought, is_new=True)
    if state.actors.is_on(obituary.actor, worker):
        die(state, obituary)
    if lived is not None:
        _answer_unknown(state, lived.request)


def delegate(state: State, actor: str, key: bytes) -> None:
    """An actor makes calls with a key of its own, if it was born."""
    record = state.actors.records[actor]
    if record.location is not None:
        state.delegates.delegate(record.worker, record.request, key)


def _answer_unknown(state: State, request: control.Request) -> None:
    """An actor exists that was unknown to a new master, and it has its name."""
    answer(state, state.questions.release(Unknown(request.actor)))
    answer(state, state.questions.release(Unknown("", request.name)))


def _adopt_if_wanted(state: State, worker: str, brought: Brought, is_new: bool) -> None:
    """Enter an actor, if this master or the one before placed it there, and it is to go on."""
    request, admission = brought.request, state.admission
    if (
        admission.may_live(request)
        and admission.seals.is_ours(worker, request, brought.gpu_ids, brought.seal)
        and _is_wanted(state, worker, brought, is_new)
    ):
        _adopt(state, worker, brought)


def _is_wanted(state: State, worker: str, brought: Brought, is_new: bool) -> bool:
    """Tell whether an actor that was not known to be on a worker is to go on there.

    It is, if its worker is new to this master and the actor was not given up, or if nobody was
    told of another of the same life, which may be waiting for room or about to be born.
    """
    actor, life = brought.request.actor, brought.request.life
    if (waiter := state.waiting.get(actor)) is not None:
        return waiter.request.life == life
    record = state.actors.records.get(actor)
    if record is None:
        return is_new and actor not in state.actors.deaths
    if record.worker == worker:
        return False
    if record.request.life == life:
        return brought.status is not None and record.location is None
    return is_new and life > record.request.life


def _adopt(state: State, worker: str, brought: Brought) -> None:
    request, gpu_ids, _, status, again = brought
    waiter, elsewhere = state.waiting.get(request.actor), state.actors.records.get(request.actor)
    record = ActorRecord(request, worker, gpu_ids, again=again)
    state.workers.ledger.reserve(worker, request.resources, tuple(gpu_ids))
    if elsewhere is not None and elsewhere.request.life == request.life:
        happen(state, Event.MOVED, elsewhere, record)
    else:
        if elsewhere is not None:
            happen(state, Event.REPLACED, elsewhere, elsewhere.lost(restarting=True))
        happen(state, Event.BROUGHT, record)
    if status is not None:
        spawned(state, worker, status.location, status.since)
    if waiter is not None:
        ask(state, waiter.session, waiter.place)


def _reconcile(state: State, record: ActorRecord, brought: Brought | None) -> None:
    """Compare what is known of an actor with what its worker, which was away, says of it."""
    if brought is None or brought.request.life != record.request.life:
        if record.ends_within_s is not None:
            die(state, record.closed())
        elif record.location is not None:
            die(state, record.lost())
        else:
            happen(state, Event.ABSENT, record)
        return
    if record.location is None and brought.status is not None:
        spawned(state, record.worker, brought.status.location, brought.status.since)
    happen(state, Event.PRESENT, record)
