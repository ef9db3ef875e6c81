"""The life of an actor, as the master sees it: asked for, placed, born, ended, begun again.

    asked for     it has a place, waits for room, or is refused (placer.py)
    placed        its worker is told; if that is lost before the birth, another has to do it
    born          who asked is told where, and so is everybody who looked it up (lookups.py)
    to end        its worker is told, and told again if it was away (reregistration.py)
    ended         who watched is told; there may be a next life (restarts.py)

Pure, as registry.py is: peers come and go there, their actors here.  Each of these steps may cause
each other.  An end makes room for a request that waits; a place takes a name from another request;
a refusal is the end of an actor that was between two lives, and that end answers who looked it up.
So the steps of others come back here: `Placer` and `Lookups` have methods of this class to call.
"""

from collections.abc import Callable

import msgspec

from remotely.master.actor_table import ActorRecord
from remotely.master.admission import Admission
from remotely.master.arrivals import Arrivals
from remotely.master.delegates import Delegates
from remotely.master.lookups import Ask, Lookups, UnknownActor
from remotely.master.placer import Placer
from remotely.master.restarts import Restarter
from remotely.master.state import State
from remotely.protocol import control
from remotely.protocol.lease import OWNER_GRACE_S


class ActorLifecycle:
    """Takes actors from each step of their lives to the next.

    `end_inside` is called with an actor that lives no more: it ends the sessions inside of it.
    `say_farewell` is called with a session that has an actor less.
    """

    def __init__(
        self,
        state: State,
        tell: Callable[[str, msgspec.Struct], bool],
        admission: Admission,
        delegates: Delegates,
        arrivals: Arrivals,
        end_inside: Callable[[str], None],
        say_farewell: Callable[[str], None],
    ) -> None:
        self._state = state
        self._tell = tell
        self._delegates = delegates
        self._arrivals = arrivals
        self._end_inside = end_inside
        self._say_farewell = say_farewell
        self._table = state.actors
        self.lookups = Lookups(state, tell, self._ask_again)
        self.placer = Placer(
            state,
            tell,
            admission,
            on_placed=self.lookups.hear_of_placement,
            on_refused=self._give_up_next_life,
            on_unreachable=self.lose_route,
        )

    # --- the beginning ----------------------------------------------------------------------------

    def place(self, who: str, place: control.Place) -> None:
        """Place an actor for a session: it is the owner, if there is to be one."""
        state = self._state
        place = state.sessions[who].stamp(place, state.counts_cpus)
        request, actor = place.request, place.request.actor
        record = self._table.records.get(actor)
        if refusal := self.placer.why_forbidden(request):
            error, why = refusal
            self._tell(who, control.NotPlaced(ticket=place.ticket, error=error, why=why))
            return
        if record is not None and record.request.life == request.life:  # asked again
            self._table.watch(who, record)
            if record.location is None:
                record.asker = who, place
            else:
                self._tell(who, control.Placed(ticket=place.ticket, location=record.location))
            return
        if record is not None:  # an earlier life, of whose end nobody has told
            self._tell(record.worker, control.End(actor=actor, grace_s=0.0, kill=True))
            self.remove(record, record.lost_before_next_life())
        state.waiting.remove(actor)
        holder = state.holder_of(request.name)
        if request.named and state.is_learning and not (holder and holder.named):
            self.lookups.hold(UnknownActor("", request.name), who, place)
            why = "the master was started again, and an actor of that name may come back"
            self._tell(who, control.Queued(ticket=place.ticket, why=why))
        else:
            self.placer.place_or_wait(who, place)

    def spawned(self, worker: str, location: control.Location, since: float) -> None:
        """Its worker says that an actor is born."""
        record = self._table.records.get(location.actor)
        if record is None or record.worker != worker:
            self._tell(worker, control.End(actor=location.actor, grace_s=0.0, kill=True))
            return
        if record.request.life != location.life:
            return
        self._state.restarts.settle(location.actor)
        location = record.settle(location, since)
        if record.asker:
            session, place = record.asker
            record.asker = None
            self._tell(session, control.Placed(ticket=place.ticket, location=location))
            if session not in self._state.sessions:  # it went while we were placing
                self.end(control.End(actor=location.actor, grace_s=OWNER_GRACE_S))
        self.lookups.hear_of_news(location.actor)
        self._arrivals.hear_of_actor(record.request)
        if self._state.waiting.any_near(location.actor):
            self.placer.retry()

    def lose_route(self, worker: str) -> None:
        """A worker cannot be reached now: until it is back, nothing is placed there."""
        if self._state.workers.suspend(worker):
            self.place_elsewhere(worker)

    def place_elsewhere(self, worker: str) -> None:
        """Place again what was about to be born on a worker: nobody was told of it, nothing ran."""
        unborn = [(r, r.asker) for r in self._table.on_worker(worker) if r.asker]
        to_end = [record for record, _ in unborn if record.ends_within_s is not None]
        to_place = [(r, asker) for r, asker in unborn if r.ends_within_s is None]
        for record, _ in to_place:
            self.take_place(record)
        for record in to_end:
            self.remove(record, record.closed())
        for record, (session, place) in to_place:
            if session in self._state.sessions:  # by itself: others of its group may live
                alone = msgspec.structs.replace(place.request, together=1)
                self.place(session, msgspec.structs.replace(place, request=alone))
            self.lookups.hear_of_news(record.request.actor)
            self._say_farewell(record.request.owner)

    def _ask_again(self, who: str, ask: Ask) -> None:
        """Look at a question again: there is news of what it is about."""
        session = self._state.sessions.get(who)
        if isinstance(ask, control.End):  # whoever asked for it, and may have gone
            self.hear_end(who, ask)
        elif session is None:
            return
        elif isinstance(ask, control.Locate):
            self.lookups.locate(who, ask)
        elif not session.leaving:
            self.place(who, ask)

    # --- the end ----------------------------------------------------------------------------------

    def hear_end(self, who: str, end: control.End) -> None:
        """End an actor, or say that there is none: who asked asks until it hears of the end."""
        actor = end.actor
        if end.kill and who in self._state.sessions:
            end = msgspec.structs.replace(end, by=self._name_of(who))
        self.end(end)
        if actor in self._table.records:
            return
        if self._state.is_learning and actor not in self._table.deaths:
            self.lookups.hold(UnknownActor(actor), who, end)
        else:
            none = control.Obituary(actor=actor, life=0, asked=True)
            self._tell(who, control.Died(obituary=self._table.deaths.get(actor, none)))

    def _name_of(self, session: str) -> str:
        """Return how to call a client to others: by its process, or as the actor that it is."""
        hello = self._state.sessions[session].hello
        if record := self._table.records.get(hello.actor):
            return record.request.name
        return f"pid {hello.pid} on {hello.machine}"

    def end(self, end: control.End) -> None:
        """Have an actor end, and not be made."""
        actor = end.actor
        if record := self._table.records.get(actor):
            before_s = record.ends_within_s
            record.ends_within_s = end.grace_s if before_s is None else min(before_s, end.grace_s)
            self._tell(record.worker, end)
        unplaced = self.lookups.withdraw(actor)
        if waiter := self._state.waiting.remove(actor):
            unplaced.append((waiter.session, waiter.place))
        for who, place in unplaced:
            self.placer.refuse(who, place, "ActorDied", "it was closed before it had room")
        self._give_up_next_life(actor)

    def end_owned(self, who: str) -> None:
        """An owner has ended."""
        for actor in self._table.by_owner.of(who):
            self.end(control.End(actor=actor, grace_s=OWNER_GRACE_S))
        for due in self._state.restarts.due_by(who):
            self._give_up_next_life(due.request.actor)

    def hear_death(self, obituary: control.Obituary) -> None:
        """A life of an actor has ended; there may be another."""
        state = self._state
        record = self._table.records.get(obituary.actor)
        if record is None or record.request.life != obituary.life:
            return
        if record.ends_within_s is not None:  # it died before its worker had heard so
            obituary = msgspec.structs.replace(obituary, asked=True)
        restarter = Restarter.NOBODY
        if record.location is not None and not state.is_closing:
            maker = record.request.maker
            session = state.sessions.get(maker)
            maker_is_there = maker in state.leases and not (session and session.leaving)
            restarter = state.restarts.restarter_of(
                record.request, obituary, maker_is_there, state.now
            )
        if restarter is Restarter.WORKER:
            self._begin_again(record, obituary)
        else:
            restarting = restarter is Restarter.MAKER
            self.remove(record, msgspec.structs.replace(obituary, restarting=restarting))

    def _begin_again(self, record: ActorRecord, obituary: control.Obituary) -> None:
        """The worker makes the next life, in the same place."""
        self._tell_of_death(record, msgspec.structs.replace(obituary, restarting=True))
        record.request = msgspec.structs.replace(record.request, life=obituary.life + 1)
        record.location, record.again = None, True
        self.placer.tell_to_spawn(record)

    def remove(self, record: ActorRecord, obituary: control.Obituary) -> None:
        """Free what an actor held, tell who watched, end what it owned."""
        request, actor = record.request, obituary.actor
        self.take_place(record)
        self._table.remember(obituary)
        self._arrivals.hear_of_end(request)
        if record.asker:
            session, place = record.asker
            self.placer.refuse(session, place, *_why_not_born(obituary))
        self._tell_of_death(record, obituary)
        if obituary.restarting:
            self._state.restarts.expect(request, obituary)
            self._table.keep_name(request)
        else:
            self._end_for_good(request)
        self._say_farewell(request.owner)
        is_there = record.worker in self._state.workers
        if is_there and request.max_restarts and not request.owner:  # a restart file may be left
            self._tell(record.worker, control.End(actor=actor, grace_s=0.0))
        if self._state.waiting.for_name(request.name):  # that is free everywhere, room only there
            self.placer.retry()
        elif is_there:
            self.placer.retry(record.worker)

    def take_place(self, record: ActorRecord) -> None:
        """Take its place from an actor: nobody makes calls in its name any more."""
        request = record.request
        self._delegates.take_back(request.actor)
        self._table.remove(record)
        self._state.workers.ledger.release(record.worker, request.resources, tuple(record.gpu_ids))
        if request.actor not in self._state.restarts:
            self._table.free_name(request)

    def _tell_of_death(self, record: ActorRecord, obituary: control.Obituary) -> None:
        for session in record.watchers:
            self._tell(session, control.Died(obituary=obituary))
        self._delegates.take_back(obituary.actor)
        self._end_inside(obituary.actor)

    def _give_up_next_life(self, actor: str) -> None:
        """If an actor's next life was due, there is none after all."""
        if due := self._state.restarts.settle(actor):
            self._table.remember(msgspec.structs.replace(due.obituary, restarting=False))
            self._end_for_good(due.request)

    def _end_for_good(self, request: control.Request) -> None:
        self._table.free_name(request)
        self._state.restarts.forget(request.actor)
        self.lookups.hear_of_news(request.actor)


def _why_not_born(obituary: control.Obituary) -> tuple[str, str]:
    """Return the error, and the words, for who asked for an actor that ended at its birth."""
    if obituary.lost:
        return "WorkerLost", obituary.why
    how = "" if obituary.exit is None else f" ({obituary.exit})"
    why = f"its process ended at birth{how}: {obituary.why} {obituary.stderr}"
    return "ActorDied", why
