"""The life of an actor, as the master sees it: asked for, placed, born, ended, begun again.

    asked for     it has a place, waits for room (waiting.py), or is refused
    placed        its worker is told; another has to do it if that one goes before it is born
    born          who asked is told where, and so is everybody who sought it (lookups.py)
    to end        its worker is told, and told again if it was away
    ended         who watched is told; there may be a next life (restarts.py)

Pure, as registry.py is, whose other half this is: there peers come and go, here their actors do.
The class is over 250 lines: each of these steps may be the cause of each other.  An end makes room
for who waits, a place takes a name from another who waits, a refusal is the end of an actor that
was between two lives, and its end answers who sought it.
"""

from collections.abc import Callable

import msgspec

from remotely.errors import name_taken
from remotely.master import shortage
from remotely.master.admission import Admission
from remotely.master.callers import Callers
from remotely.master.lookups import Question, Sought, Unheard
from remotely.master.placement import Never, Placement, Wait
from remotely.master.reregistration import Brought
from remotely.master.restarts import Heir
from remotely.master.roster import Record, asked_of
from remotely.master.state import State
from remotely.master.waiting import Waiter
from remotely.protocol import control

OWNER_GRACE_S = 1.0  # for the actors of an owner that has ended: nobody waits for their results


class Lives:
    """Places actors, and ends them.

    `end_inside` is called with an actor that lives no more: it ends the sessions inside of it.
    `say_farewell` is called with a session that has an actor less.
    """

    def __init__(
        self,
        state: State,
        tell: Callable[[str, msgspec.Struct], bool],
        admission: Admission,
        callers: Callers,
        end_inside: Callable[[str], None],
        say_farewell: Callable[[str], None],
    ) -> None:
        self._state = state
        self._tell = tell
        self._admission = admission
        self._callers = callers
        self._end_inside = end_inside
        self._say_farewell = say_farewell
        self._sought = Sought()
        self._actors = state.roster.actors
        self._names = state.roster.names
        self._deaths = state.roster.deaths

    # --- placing ----------------------------------------------------------------------------------

    def place(self, who: str, place: control.Place) -> None:
        """Place an actor for a session: it is the owner, if there is to be one."""
        state = self._state
        place = state.sessions[who].stamp(place)
        request, actor = place.request, place.request.actor
        record = self._actors.get(actor)
        if refusal := self._why_not(request):
            error, why = refusal
            self._tell(who, control.NotPlaced(ticket=place.ticket, error=error, why=why))
            return
        if record is not None and record.request.life == request.life:  # asked again
            state.roster.watch(who, record)
            if record.location is None:
                record.asker = who, place
            else:
                self._tell(who, control.Placed(ticket=place.ticket, location=record.location))
            return
        if record is not None:  # an earlier life, of whose end nobody has told
            self._tell(record.worker, control.End(actor=actor, grace_s=0.0, kill=True))
            self._remove(record, _lost_before(record))
        state.waiting.remove(actor)
        holder = state.holder_of(request.name)
        if request.named and state.is_learning and not (holder and holder.named):
            self._sought.hold(Unheard("", request.name), who, place)
            why = "the master was started again, and an actor of that name may come back"
            self._tell(who, control.Queued(ticket=place.ticket, why=why))
        elif not self._try(who, place):
            state.waiting.add(who, place, state.now + place.patience_s)
            why = shortage.why_it_waits(request, state)
            self._tell(who, control.Queued(ticket=place.ticket, why=why))

    def _why_not(self, request: control.Request) -> tuple[str, str] | None:
        """Return the error and the words for a request that may not be made at all."""
        if not self._admission.is_listed(request.key):
            return "NotAllowed", "this key was revoked; ask who runs the cluster for another"
        state, actor = self._state, request.actor
        for other in (self._actors.get(actor), state.waiting.get(actor), state.restarts.due(actor)):
            if other is None:
                continue
            if (other.request.owner, other.request.key) != (request.owner, request.key):
                return "NotAllowed", "this actor is another client's"
            if request.life < other.request.life:
                return "ActorDied", "this life of the actor is over: a later one was asked for"
        if (due := state.restarts.due(actor)) and request.life == due.request.life:
            return "ActorDied", "this life of the actor is over, and another follows"
        return None

    def _try(self, who: str, place: control.Place) -> bool:
        """Place it or refuse it; false if it has to wait."""
        state, request = self._state, place.request
        ledger = state.fleet.ledger
        holder = state.holder_of(request.name)
        both_named = request.named and holder is not None and holder.named
        if both_named and self._names[request.name] != request.actor:
            self._refuse_name(who, place)
            return True
        if not state.fleet.machines or state.is_closing:
            return False
        if why_never := shortage.why_it_never_fits(request, state):
            self._refuse(who, place, "NoResources", why_never)
            return True
        while True:
            match ledger.place(asked_of(request), request.python):
                case Placement(worker=worker, gpu_ids=gpu_ids):
                    record = Record(request, worker, list(gpu_ids), asker=(who, place))
                    if self._tell_to_spawn(record):
                        self._enter(record, who)
                        self._hear_of_place(request)
                        return True
                    ledger.release(worker, asked_of(request), gpu_ids)
                    self.lose_route(worker)  # and look for another
                case Never(reason=why) if not state.is_learning:
                    known = request.python in ledger.pythons
                    error = "NoResources" if known else "VersionMismatch"
                    if known and state.is_embedded:
                        has = state.fleet.only_size()
                        why += f". {shortage.way_out(asked_of(request), has)}"
                    self._refuse(who, place, error, why)
                    return True
                case Never() | Wait():
                    return False

    def _enter(self, record: Record, watcher: str) -> None:
        """An actor has its place, and its name."""
        request, waiting = record.request, self._state.waiting
        self._state.roster.enter(record)
        if watcher:
            self._state.roster.watch(watcher, record)
        if request.named:
            for waiter in waiting.for_name(request.name):
                if waiter.request.actor != request.actor:
                    waiting.remove(waiter.request.actor)
                    self._refuse_name(waiter.session, waiter.place)

    def _tell_to_spawn(self, record: Record) -> bool:
        worker, request, gpu_ids = record.worker, record.request, record.gpu_ids
        seal = self._admission.seals.seal(worker, request, gpu_ids)
        return self._tell(
            worker,
            control.Spawn(request=request, gpu_ids=gpu_ids, again=record.again, seal=seal),
        )

    def _refuse_name(self, who: str, place: control.Place) -> None:
        why = name_taken(place.request.name, "on this cluster")
        self._refuse(who, place, "NameTaken", why)

    def _refuse(self, who: str, place: control.Place, error: str, why: str) -> None:
        self._tell(who, control.NotPlaced(ticket=place.ticket, error=error, why=why))
        self._give_up_next_life(place.request.actor)

    def refuse_overdue(self) -> None:
        """Refuse those who have waited for room as long as they would."""
        for waiter in self._state.waiting.overdue(self._state.now):
            self._state.waiting.remove(waiter.request.actor)
            why = shortage.why_it_waits(waiter.request, self._state)
            why = f"no room for {waiter.place.patience_s:g} s: {why}"
            self._refuse(waiter.session, waiter.place, "NoResources", why)

    def retry(self, worker: str | None = None) -> None:
        """Place or refuse who waits, if they can be now; `worker`: only there is new room."""
        ledger = self._state.fleet.ledger
        self._state.waiting.serve(
            lambda asked, python: worker is None or ledger.has_room(worker, asked, python),
            self._serve,
        )

    def _serve(self, waiter: Waiter) -> bool:
        """Place or refuse one that waits, and say so; false if it has to wait on."""
        served = self._try(waiter.session, waiter.place)
        if served:
            self._tell(waiter.session, control.Queued(ticket=waiter.place.ticket, why=""))
        return served

    # --- who seeks one ----------------------------------------------------------------------------

    def locate(self, who: str, ask: control.Locate) -> None:
        actor = ask.actor or self._names.get(ask.name, "")
        record = self._actors.get(actor)
        if actor in self._state.restarts or (record is not None and record.location is None):
            self._sought.hold(actor, who, ask)
            return
        if self._state.is_learning and record is None and actor not in self._deaths:
            self._sought.hold(Unheard(actor, "" if actor else ask.name), who, ask)
            return
        if record is not None:
            self._state.roster.watch(who, record)
        self._tell(
            who,
            control.Located(
                ticket=ask.ticket,
                location=record.location if record else None,
                obituary=self._deaths.get(actor),
            ),
        )

    def _hear_of_place(self, request: control.Request) -> None:
        """An actor was placed.  An automatic name is no news of one that was named so."""
        if request.named:
            self.hear_of(request)
        else:
            self._look_again(self._sought.release(Unheard(request.actor)))

    def hear_of(self, request: control.Request) -> None:
        """There is such an actor, of which a new master had not heard, and it has its name."""
        self._look_again(self._sought.release(Unheard(request.actor)))
        self._look_again(self._sought.release(Unheard("", request.name)))

    def answer_all(self) -> None:
        """No worker comes back any more of which a new master has not heard."""
        self._look_again(self._sought.release_unheard())

    def _answer_sought(self, actor: str) -> None:
        """There is news of an actor."""
        self._look_again(self._sought.release(actor))

    def _look_again(self, questions: list[Question]) -> None:
        for who, ask in questions:
            session = self._state.sessions.get(who)
            if isinstance(ask, control.End):  # whoever asked for it, and may have gone
                self.hear_end(who, ask)
            elif session is None:
                continue
            elif isinstance(ask, control.Locate):
                self.locate(who, ask)
            elif not session.leaving:
                self.place(who, ask)

    # --- its worker -------------------------------------------------------------------------------

    def spawned(self, worker: str, location: control.Location, since: float) -> None:
        """Its worker says that an actor is born."""
        record = self._actors.get(location.actor)
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
        self._answer_sought(location.actor)

    def adopt(self, worker: str, brought: Brought) -> None:
        """Enter an actor that its worker has brought along."""
        state = self._state
        request, gpu_ids, _, status, again = brought
        waiter = state.waiting.remove(request.actor)
        record = Record(request, worker, gpu_ids, again=again)
        if elsewhere := self._actors.get(request.actor):
            self._tell(elsewhere.worker, control.End(actor=request.actor, grace_s=0.0, kill=True))
            if elsewhere.request.life == request.life:
                record.asker, record.ends_within_s = elsewhere.asker, elsewhere.ends_within_s
                self._take_off(elsewhere)
            else:
                self._remove(elsewhere, _lost_before(elsewhere))
        state.fleet.ledger.reserve(worker, asked_of(request), tuple(gpu_ids))
        self._enter(record, record.asker[0] if record.asker else request.owner)
        if request.owner and request.owner not in state.sessions:
            state.leases.renew(request.owner, state.now)
        if status is not None:
            self.spawned(worker, status.location, status.since)
        if waiter is not None:
            self.place(waiter.session, waiter.place)

    def reconcile(self, record: Record, brought: Brought | None) -> None:
        """Compare what is known of an actor with what its worker, which was away, says of it."""
        request, worker, ends_within_s = record.request, record.worker, record.ends_within_s
        is_there = brought is not None and brought.request.life == request.life
        if is_there and record.location is None and brought and (status := brought.status):
            self.spawned(worker, status.location, status.since)
        if ends_within_s is not None and is_there:
            self._tell(worker, control.End(actor=request.actor, grace_s=ends_within_s))
        elif ends_within_s is not None:
            self.hear_death(msgspec.structs.replace(record.lost(), lost=False, asked=True))
        elif not is_there and record.location is None:
            self._tell_to_spawn(record)
        elif not is_there:
            self.hear_death(record.lost())

    def lose_route(self, worker: str) -> None:
        """A worker cannot be reached now: until it is back, nothing is placed there."""
        if self._state.fleet.suspend(worker):
            self.place_elsewhere(worker)

    def place_elsewhere(self, worker: str) -> None:
        """Place again what was about to be born on a worker: nobody was told of it, nothing ran."""
        unborn = [(r, r.asker) for r in self._state.roster.at(worker) if r.asker]
        to_end = [record for record, _ in unborn if record.ends_within_s is not None]
        to_place = [(r, asker) for r, asker in unborn if r.ends_within_s is None]
        for record, _ in to_place:
            self._take_off(record)
        for record in to_end:
            self._remove(record, msgspec.structs.replace(record.lost(), lost=False, asked=True))
        for record, (session, place) in to_place:
            if session in self._state.sessions:
                self.place(session, place)
            self._answer_sought(record.request.actor)
            self._say_farewell(record.request.owner)

    # --- the end ----------------------------------------------------------------------------------

    def hear_end(self, who: str, end: control.End) -> None:
        """End an actor, or say that there is none: who asked asks until it hears of the end."""
        actor = end.actor
        if end.kill and who in self._state.sessions:
            end = msgspec.structs.replace(end, by=self._name_of(who))
        self.end(end)
        if actor in self._actors:
            return
        if self._state.is_learning and actor not in self._deaths:
            self._sought.hold(Unheard(actor), who, end)
        else:
            none = control.Obituary(actor=actor, life=0, asked=True)
            self._tell(who, control.Died(obituary=self._deaths.get(actor, none)))

    def _name_of(self, session: str) -> str:
        """Return how to call a client to others: by its process, or as the actor that it is."""
        hello = self._state.sessions[session].hello
        if record := self._actors.get(hello.actor):
            return record.request.name
        return f"pid {hello.pid} on {hello.machine}"

    def end(self, end: control.End) -> None:
        """Have an actor end, and not be made."""
        actor = end.actor
        if record := self._actors.get(actor):
            before_s = record.ends_within_s
            record.ends_within_s = end.grace_s if before_s is None else min(before_s, end.grace_s)
            self._tell(record.worker, end)
        unplaced = self._sought.withdraw(actor)
        if waiter := self._state.waiting.remove(actor):
            unplaced.append((waiter.session, waiter.place))
        for who, place in unplaced:
            self._refuse(who, place, "ActorDied", "it was closed before it had room")
        self._give_up_next_life(actor)

    def end_owned(self, who: str) -> None:
        """An owner has ended."""
        for actor in self._state.roster.owned.of(who):
            self.end(control.End(actor=actor, grace_s=OWNER_GRACE_S))
        for due in self._state.restarts.due_by(who):
            self._give_up_next_life(due.request.actor)

    def hear_death(self, obituary: control.Obituary) -> None:
        """A life of an actor has ended; there may be another."""
        state = self._state
        record = self._actors.get(obituary.actor)
        if record is None or record.request.life != obituary.life:
            return
        if record.ends_within_s is not None:  # it died before its worker had heard so
            obituary = msgspec.structs.replace(obituary, asked=True)
        heir = Heir.NOBODY
        if record.location is not None and not state.is_closing:
            maker = record.request.maker
            session = state.sessions.get(maker)
            maker_is_there = maker in state.leases and not (session and session.leaving)
            heir = state.restarts.heir_of(record.request, obituary, maker_is_there, state.now)
        if heir is Heir.WORKER:
            self._begin_again(record, obituary)
        else:
            restarting = heir is Heir.MAKER
            self._remove(record, msgspec.structs.replace(obituary, restarting=restarting))

    def _begin_again(self, record: Record, obituary: control.Obituary) -> None:
        """The worker makes the next life, in the same place."""
        self._tell_of_death(record, msgspec.structs.replace(obituary, restarting=True))
        record.request = msgspec.structs.replace(record.request, life=obituary.life + 1)
        record.location, record.again = None, True
        self._tell_to_spawn(record)

    def _remove(self, record: Record, obituary: control.Obituary) -> None:
        """Free what an actor held, tell who watched, end what it owned."""
        request, actor = record.request, obituary.actor
        self._take_off(record)
        self._state.roster.remember(obituary)
        if record.asker:
            session, place = record.asker
            self._refuse(session, place, *_why_not_born(obituary))
        self._tell_of_death(record, obituary)
        if obituary.restarting:
            self._state.restarts.expect(request, obituary)
            self._state.roster.keep_name(request)
        else:
            self._end_for_good(request)
        self._say_farewell(request.owner)
        if record.worker in self._state.fleet:
            if request.max_restarts and not request.owner:  # it may have left a restart file
                self._tell(record.worker, control.End(actor=actor, grace_s=0.0))
            self.retry(record.worker)

    def _take_off(self, record: Record) -> None:
        """An actor has no place any more, and so nobody makes calls in its name."""
        request = record.request
        self._callers.take_back(request.actor)
        self._state.roster.take_off(record)
        self._state.fleet.ledger.release(record.worker, asked_of(request), tuple(record.gpu_ids))
        if request.actor not in self._state.restarts:
            self._state.roster.free_name(request)

    def _tell_of_death(self, record: Record, obituary: control.Obituary) -> None:
        for session in record.watchers:
            self._tell(session, control.Died(obituary=obituary))
        self._callers.take_back(obituary.actor)
        self._end_inside(obituary.actor)

    def _give_up_next_life(self, actor: str) -> None:
        """If an actor's next life was due, there is none after all."""
        if due := self._state.restarts.settle(actor):
            self._state.roster.remember(msgspec.structs.replace(due.obituary, restarting=False))
            self._end_for_good(due.request)

    def _end_for_good(self, request: control.Request) -> None:
        self._state.roster.free_name(request)
        self._state.restarts.forget(request.actor)
        self._answer_sought(request.actor)


def _lost_before(record: Record) -> control.Obituary:
    """Return what is told of a life of whose end nobody has told, and that a later one follows."""
    return msgspec.structs.replace(record.lost(), restarting=True)


def _why_not_born(obituary: control.Obituary) -> tuple[str, str]:
    """Return the error, and the words, for who asked for an actor that ended at its birth."""
    if obituary.lost:
        return "WorkerLost", obituary.why
    how = "" if obituary.exit is None else f" ({obituary.exit})"
    why = f"its process ended at birth{how}: {obituary.why} {obituary.stderr}"
    return "ActorDied", why
