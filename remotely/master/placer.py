"""Requests for a place: granted, made to wait for room (waiting.py), or refused.

Where a request goes is decided in placement.py; here are those that ask, and what they are told.
"""

from collections.abc import Callable

import msgspec

from remotely.errors import name_taken
from remotely.master import shortage
from remotely.master.actor_table import ActorRecord
from remotely.master.admission import Admission
from remotely.master.affinity import why_nowhere, workers_for
from remotely.master.kept_room import KeptRoom
from remotely.master.placement import Never, Placement, Wait
from remotely.master.state import State
from remotely.master.waiting import Waiter, gang_of
from remotely.protocol import control

SOON_S = 5.0  # how long a request waits at least for the others of its group, or for any machine


class Placer:
    """Gives actors their places.

    `on_placed` is called with each request that has a place, `on_refused` with the id of an actor
    that is not made, `on_unreachable` with a worker that was chosen and cannot be told.
    """

    def __init__(
        self,
        state: State,
        tell: Callable[[str, msgspec.Struct], bool],
        admission: Admission,
        on_placed: Callable[[control.Request], None],
        on_refused: Callable[[str], None],
        on_unreachable: Callable[[str], None],
    ) -> None:
        self._state = state
        self._tell = tell
        self._admission = admission
        self._on_placed = on_placed
        self._on_refused = on_refused
        self._on_unreachable = on_unreachable
        self._kept_room = KeptRoom(state, self._serve)
        self._is_crowd_told = False

    def why_forbidden(self, request: control.Request) -> tuple[str, str] | None:
        """Return the error and the words for a request that may not be made at all."""
        if not self._admission.is_listed(request.key):
            return "NotAllowed", "this key was revoked; ask who runs the cluster for another"
        state, actor = self._state, request.actor
        record, due = state.actors.records.get(actor), state.restarts.due(actor)
        for other in (record, state.waiting.get(actor), due):
            if other is None:
                continue
            if (other.request.owner, other.request.key) != (request.owner, request.key):
                return "NotAllowed", "this actor is another client's"
            if request.life < other.request.life:
                return "ActorDied", "this life of the actor is over: a later one was asked for"
        if due and request.life == due.request.life:
            return "ActorDied", "this life of the actor is over, and another follows"
        return None

    def place_or_wait(self, session: str, place: control.Place) -> None:
        """Place an actor, refuse it, or have it wait for room."""
        if gang := gang_of(place.request):
            self._gather(gang, session, place)
        elif not self._try(session, place):
            is_starting = not self._state.workers.records
            if place.patience_s or is_starting:
                self._wait(session, place, SOON_S if is_starting else 0.0)
                self._say_why(session, place)
            else:
                why = shortage.why_it_waits(place.request, self._state)
                self.refuse(session, place, "NoResources", f"no room: {why}")

    def _gather(self, gang: str, session: str, place: control.Place) -> None:
        """Keep a request of a group until all of it has asked; then place the group, or wait."""
        self._wait(session, place, SOON_S)
        if self._state.has_asked_whole(place.request) and not self._try_gang(gang):
            for waiter in self._state.waiting.gang(gang):
                self._say_why(waiter.session, waiter.place)

    def _try_gang(self, gang: str) -> bool:
        """Place a group whole, or refuse it; false if it has to wait."""
        state = self._state
        waiters = state.waiting.gang(gang)
        request = waiters[0].request
        if not state.workers.records or state.is_closing:
            return False
        if refusal := self._why_never(request, len(waiters)):
            for waiter in waiters:
                state.waiting.remove(waiter.request.actor)
                self.refuse(waiter.session, waiter.place, *refusal)
            return True
        among = workers_for(request, state)
        needs = request.resources, request.python, len(waiters), among
        if state.workers.ledger.copies(*needs) < len(waiters):
            return False
        for waiter in waiters:
            state.waiting.remove(waiter.request.actor)
        for waiter in waiters:
            if not self._try(waiter.session, waiter.place):  # a machine was lost at this moment
                alone = msgspec.structs.replace(waiter.request, together=1)
                self._wait(waiter.session, msgspec.structs.replace(waiter.place, request=alone))
        return True

    def _wait(self, session: str, place: control.Place, least_s: float = 0.0) -> None:
        self._state.waiting.add(session, place, self._state.now + max(place.patience_s, least_s))

    def _say_why(self, session: str, place: control.Place) -> None:
        why = shortage.why_it_waits(place.request, self._state)
        self._tell(session, control.Queued(ticket=place.ticket, why=why))

    def _why_never(self, request: control.Request, count: int) -> tuple[str, str] | None:
        """Return the error and the words for what can never live at once; None if it can."""
        state, ledger = self._state, self._state.workers.ledger
        if state.is_learning:
            return None
        if why := why_nowhere(request, state):
            return "NoResources", why
        among = workers_for(request, state)
        if among is not None and not among:  # as in `_try`
            return None
        if why := ledger.why_never(request.resources, request.python, among):
            return self._refusal(request, why)
        if why := shortage.why_it_never_fits(request, count, among, state):
            return "NoResources", why
        return None

    def _refusal(self, request: control.Request, why: str) -> tuple[str, str]:
        """Return the error and the words for what no worker is large enough for."""
        if request.python not in self._state.workers.ledger.pythons:
            return "VersionMismatch", why
        if self._state.is_embedded:
            in_all, uncounted = self._state.workers.only_size(), self._state.uncounted
            why += f". {shortage.way_out(request.resources, in_all, uncounted)}"
        return "NoResources", why

    def _try(self, session: str, place: control.Place) -> bool:
        """Place it or refuse it; false if it has to wait."""
        state, request = self._state, place.request
        ledger = state.workers.ledger
        holder = state.holder_of(request.name)
        both_named = request.named and holder is not None and holder.named
        if both_named and state.actors.names[request.name] != request.actor:
            ending = state.actors.ending(request.name)
            if ending and state.sessions[session].hello.actor != ending:  # else it waits for itself
                return False
            self._refuse_name(session, place)
            return True
        if not state.workers.records or state.is_closing:
            return False
        among = None
        if request.machine or request.near:
            if why := why_nowhere(request, state):
                self.refuse(session, place, "NoResources", why)
                return True
            if not (among := workers_for(request, state)):  # its neighbor is between two lives
                return False
        while True:
            match ledger.place(request.resources, request.python, among):
                case Placement(worker=worker, gpu_ids=gpu_ids):
                    record = ActorRecord(request, worker, list(gpu_ids), asker=(session, place))
                    if self.tell_to_spawn(record):
                        self.enter(record, session)
                        self._on_placed(request)
                        self._tell_of_crowd(request)
                        return True
                    ledger.release(worker, request.resources, gpu_ids)
                    self._on_unreachable(worker)  # and look for another
                case Never(reason=why) if not state.is_learning:
                    self.refuse(session, place, *self._refusal(request, why))
                    return True
                case Never() | Wait():
                    return False

    def _tell_of_crowd(self, request: control.Request) -> None:
        """Tell a script, once, that its actors outnumber the cores, if they do not wait for one."""
        state = self._state
        if not self._is_crowd_told and state.uncounted > state.workers.ledger.cpus:
            self._is_crowd_told = True
            self._tell(request.job, control.Notice(text=shortage.crowd(state)))

    def enter(self, record: ActorRecord, watcher: str) -> None:
        """Write down that an actor has its place, and its name; others that want the name lose."""
        state, request = self._state, record.request
        state.actors.add(record)
        if watcher:
            state.actors.watch(watcher, record)
        if request.named:
            for waiter in state.waiting.for_name(request.name):
                if waiter.request.actor != request.actor:
                    state.waiting.remove(waiter.request.actor)
                    self._refuse_name(waiter.session, waiter.place)

    def tell_to_spawn(self, record: ActorRecord) -> bool:
        """Have a worker make an actor; false if it cannot be reached."""
        worker, request, gpu_ids = record.worker, record.request, record.gpu_ids
        seal = self._admission.seals.seal(worker, request, gpu_ids)
        return self._tell(
            worker,
            control.Spawn(request=request, gpu_ids=gpu_ids, again=record.again, seal=seal),
        )

    def refuse(self, session: str, place: control.Place, error: str, why: str) -> None:
        """Answer that an actor is not made; `error` names a class of errors.py."""
        self._tell(session, control.NotPlaced(ticket=place.ticket, error=error, why=why))
        self._on_refused(place.request.actor)

    def _refuse_name(self, session: str, place: control.Place) -> None:
        why = name_taken(place.request.name, "on this cluster")
        self.refuse(session, place, "NameTaken", why)

    # --- those that wait --------------------------------------------------------------------------

    def retry(self, worker: str | None = None) -> None:
        """Place or refuse waiting requests, where that is possible now.

        `worker`: there is new room on this one, and nowhere else.
        """
        ledger = self._state.workers.ledger
        if self._kept_room.use():
            worker = None
        self._state.waiting.serve(
            lambda asked, python: worker is None or ledger.has_room(worker, asked, python),
            self._serve,
        )
        if self._kept_room.use():  # its request has found a place elsewhere
            self.retry()

    def _serve(self, waiter: Waiter) -> bool:
        """Place or refuse one that waits, and say so; false if it has to wait on."""
        if gang := gang_of(waiter.request):
            if not self._state.has_asked_whole(waiter.request):
                return False
            waiters = self._state.waiting.gang(gang)
            served = self._try_gang(gang)
        else:
            waiters = [waiter]
            served = self._try(waiter.session, waiter.place)
        if served:
            for each in waiters:
                self._tell(each.session, control.Queued(ticket=each.place.ticket, why=""))
        return served

    def look_after_waiting(self) -> None:
        """Now and then: refuse those that have waited for room as long as they would, and keep room
        for one that others overtake."""
        for waiter in self._state.waiting.overdue(self._state.now):
            self._state.waiting.remove(waiter.request.actor)
            why = shortage.why_it_waits(waiter.request, self._state)
            why = f"no room for {waiter.place.patience_s:g} s: {why}"
            self.refuse(waiter.session, waiter.place, "NoResources", why)
        if self._kept_room.review() or self._kept_room.use():
            self.retry()
