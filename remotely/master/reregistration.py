"""What a worker brings along when it says who it is, to the master it knew or to a new one.

A master holds nothing that a worker does not know: after a restart it learns its actors from here.
A worker that was cut off finds here what it missed: an actor that it was to make or to end.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from remotely.master.actor_table import ActorRecord
from remotely.master.admission import Admission
from remotely.master.delegates import Delegates
from remotely.master.lifecycle import ActorLifecycle
from remotely.master.state import State
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


class Reregistration:
    """Makes the master's records and a worker's agree."""

    def __init__(
        self,
        state: State,
        tell: Callable[[str, msgspec.Struct], bool],
        admission: Admission,
        delegates: Delegates,
        lifecycle: ActorLifecycle,
    ) -> None:
        self._state = state
        self._tell = tell
        self._admission = admission
        self._delegates = delegates
        self._lifecycle = lifecycle

    def adopt_all(self, register: control.Register, is_new: bool) -> None:
        """Enter the actors that a worker brings, before anything else can be placed on it."""
        all_brought = brought_by(register).values()
        for brought in all_brought:
            self._adopt_if_wanted(register.worker, brought, is_new)
        for brought in all_brought:
            self._lifecycle.lookups.hear_of_actor(brought.request)

    def settle(self, register: control.Register) -> None:
        """Make right what was lost on the way while a worker's connection was broken."""
        name, table = register.worker, self._state.actors
        all_brought = brought_by(register)
        for record in table.on_worker(name):
            self._reconcile(record, all_brought.get(record.request.actor))
        for actor, brought in all_brought.items():  # given up, or made elsewhere meanwhile
            if not table.is_on(actor, name):
                self._tell(name, control.End(actor=actor, grace_s=0.0, kill=True))
            elif brought.status is not None and brought.status.delegate:
                self._delegates.delegate(table.records[actor], brought.status.delegate)

    def hear_death(
        self, worker: str, obituary: control.Obituary, lived: control.ActorStatus | None
    ) -> None:
        """An actor has ended: perhaps while there was no master, so that we never heard of it."""
        table = self._state.actors
        is_unknown = self._state.is_learning and obituary.actor not in table.records
        if lived is not None and is_unknown:
            brought = Brought(lived.request, lived.gpu_ids, lived.seal, lived)
            self._adopt_if_wanted(worker, brought, is_new=True)
        if table.is_on(obituary.actor, worker):
            self._lifecycle.hear_death(obituary)
        if lived is not None:
            self._lifecycle.lookups.hear_of_actor(lived.request)

    def _adopt_if_wanted(self, worker: str, brought: Brought, is_new: bool) -> None:
        if self._is_genuine(worker, brought) and self._is_wanted(worker, brought, is_new):
            self._adopt(worker, brought)

    def _is_genuine(self, worker: str, brought: Brought) -> bool:
        """Tell whether it was placed there, by this master or the one before, and may still be."""
        return self._admission.may_live(brought.request) and self._admission.seals.is_ours(
            worker, brought.request, brought.gpu_ids, brought.seal
        )

    def _is_wanted(self, worker: str, brought: Brought, is_new: bool) -> bool:
        """Tell whether an actor that was not known to be on a worker is to go on there.

        It is, if its worker is new to this master and the actor was not given up, or if nobody was
        told of another of the same life, which may be waiting for room or about to be born.
        """
        state = self._state
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

    def _adopt(self, worker: str, brought: Brought) -> None:
        """Enter an actor that its worker has brought along."""
        state, lifecycle = self._state, self._lifecycle
        request, gpu_ids, _, status, again = brought
        waiter = state.waiting.remove(request.actor)
        record = ActorRecord(request, worker, gpu_ids, again=again)
        if elsewhere := state.actors.records.get(request.actor):
            self._tell(elsewhere.worker, control.End(actor=request.actor, grace_s=0.0, kill=True))
            if elsewhere.request.life == request.life:
                record.asker, record.ends_within_s = elsewhere.asker, elsewhere.ends_within_s
                lifecycle.take_place(elsewhere)
            else:
                lifecycle.remove(elsewhere, elsewhere.lost_before_next_life())
        state.workers.ledger.reserve(worker, request.resources, tuple(gpu_ids))
        lifecycle.placer.enter(record, record.asker[0] if record.asker else request.owner)
        if request.owner and request.owner not in state.sessions:
            state.leases.renew(request.owner, state.now)
        if status is not None:
            lifecycle.spawned(worker, status.location, status.since)
        if waiter is not None:
            lifecycle.place(waiter.session, waiter.place)

    def _reconcile(self, record: ActorRecord, brought: Brought | None) -> None:
        """Compare what is known of an actor with what its worker, which was away, says of it."""
        lifecycle = self._lifecycle
        request, worker, ends_within_s = record.request, record.worker, record.ends_within_s
        is_there = brought is not None and brought.request.life == request.life
        if is_there and record.location is None and brought and (status := brought.status):
            lifecycle.spawned(worker, status.location, status.since)
        if ends_within_s is not None and is_there:
            self._tell(worker, control.End(actor=request.actor, grace_s=ends_within_s))
        elif ends_within_s is not None:
            lifecycle.hear_death(record.closed())
        elif not is_there and record.location is None:
            lifecycle.placer.tell_to_spawn(record)
        elif not is_there:
            lifecycle.hear_death(record.lost())
