"""The life of an actor, as the master sees it: one table of what follows from each event.

    ENDED         it is not there: nobody asked for it yet, or it has ended
    WAITING       it was asked for, and there is no room, or its name may be taken
    STARTING      it has a place, its worker is told to start it, and a client waits for that
    RESUMING      the same, and no client waits: the worker starts its next life by itself, or
                  started it for the master before this one
    ALIVE         it was born: everybody who asks is told where
    CANCELLED     it was asked to end before it was born
    ENDING        it was asked to end, and lives as yet
    RESTARTING    it is between two lives: its maker is told to ask for the next

`RULES` below says what follows from each event in each of these.  A pair that is not in it cannot
happen: `happen` is not called for it.  The order of steps counts: a room that is free is offered to
others last, when all have been told of the end that freed it.  Steps may cause further events.  An
end makes room for a request that waits; a place takes a name from another request; a refusal is the
end of an actor that was between two lives, and that end answers the questions about it.

The next life
    The master decides when a life ends, so that everybody hears the same: the obituary says whether
    the actor is restarted.  Clients then ask where the next life is.  They are answered when it has
    a place, or when there is none after all.

    started by                                   from                        where
    MAKER_RESTARTS   the client that made it     the class and arguments,    wherever there is room
                                                 which it keeps
    WORKER_RESTARTS  the worker of a detached    what the last life left     there, with the same
                     actor whose process died    behind (restart_file.py)    resources

    So a detached actor survives the end of its maker, and its own.  It does not survive the loss of
    its machine when its maker is gone too.

Nothing here waits for an answer: a message that cannot be sent is an event of its own (`lose_route`
in core.py), so a request may be placed on a worker that cannot be reached, and is placed again.

Over 700 lines: one state machine, whose steps cause each other.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from remotely.errors import name_taken
from remotely.master import kept_room, shortage, status
from remotely.master.arrivals import Gift
from remotely.master.state import (
    ActorRecord,
    Asked,
    LetGo,
    Question,
    State,
    UnaskedEnd,
    Unknown,
)
from remotely.master.waiting import Waiter, gang_of
from remotely.protocol import control
from remotely.protocol.lease import OWNER_GRACE_S

SOON_S = 5.0  # how long a request waits at least for the others of its group, or for any machine


class Phase(StrEnum):
    """Where an actor stands."""

    ENDED = "ended"
    WAITING = "waiting"
    STARTING = "starting"
    RESUMING = "resuming"
    ALIVE = "alive"
    CANCELLED = "cancelled"
    ENDING = "ending"
    RESTARTING = "restarting"


class Event(StrEnum):
    """What happens to it.  With each, `happen` is given what the steps below need."""

    ASKED = "a client asks for this life"  # Asked
    ROOM = "there is room for it"
    REFUSED = "it cannot be placed, or waited too long"  # NotPlaced
    BROUGHT = "a worker that registers has it"
    BORN = "its worker says that it is born"  # Location
    CLOSED = "it is asked to end, or its owner or maker has ended"  # End
    DIED = "its life has ended, and no other follows"  # Obituary
    MAKER_RESTARTS = "its life has ended, and its maker starts another"  # Obituary
    WORKER_RESTARTS = "its life has ended, and its worker starts another"  # Obituary
    REPLACED = "a later life is asked for, or brought by a worker"  # Obituary
    MOVED = "another worker that registers has this very life"  # ActorRecord, there
    UNREACHABLE = "its worker cannot be reached, or is lost"  # Obituary, if it was to end
    PRESENT = "its worker is back, and has it"
    ABSENT = "its worker is back, and never heard of it"


def phase_of(state: State, actor: str) -> Phase:
    """Return where an actor stands.  This is told by what is kept of it, and kept nowhere else."""
    if (record := state.actors.records.get(actor)) is not None:
        if record.ends_within_s is not None:
            return Phase.ENDING if record.location else Phase.CANCELLED
        if record.location is not None:
            return Phase.ALIVE
        return Phase.STARTING if record.asker else Phase.RESUMING
    if actor in state.waiting or state.questions.places(actor):
        return Phase.WAITING
    return Phase.RESTARTING if actor in state.restarts.due else Phase.ENDED


# --- steps: each with the record of the actor, and with what the event said -----------------------


def queue(state: State, record: ActorRecord, said: object) -> None:
    """It is placed, refused or put into the queue; held back if a new master may yet hear of an
    actor with its name."""
    assert isinstance(said, Asked)
    request, (who, place) = record.request, said
    state.waiting.remove(request.actor)
    holder = state.holder_of(request.name)
    if request.named and state.is_learning and not (holder and holder.named):
        state.questions.hold(Unknown("", request.name), (who, place))
        why = "the master was started again, and an actor of that name may come back"
        state.tell(who, control.Queued(ticket=place.ticket, why=why))
        return
    is_starting, gang = not state.workers.records, gang_of(request)
    least_s = SOON_S if is_starting or gang else 0.0
    deadline = state.now + max(place.patience_s, least_s)
    waiter = state.waiting.add(who, place, state.now, deadline)
    if serve(state, waiter):
        return
    if not (place.patience_s or is_starting or gang):
        why = shortage.why_it_waits(request, state)
        refuse(state, waiter, "NoResources", f"no room: {why}")
    elif state.has_asked_whole(request):
        for each in state.waiting.gang(gang) if gang else [waiter]:
            why = shortage.why_it_waits(each.request, state)
            state.tell(each.session, control.Queued(ticket=each.place.ticket, why=why))


def tell_refusal(state: State, record: ActorRecord, said: object) -> None:
    """Its request leaves the queue, and its client is told why it is not made."""
    assert isinstance(said, control.NotPlaced)
    assert record.asker is not None
    state.waiting.remove(record.request.actor)
    state.tell(record.asker.session, said)


def withdraw(state: State, record: ActorRecord, said: object) -> None:
    """All requests for it are refused."""
    actor = record.request.actor
    asked = state.questions.withdraw(actor)
    if waiter := state.waiting.remove(actor):
        asked.append(Asked(waiter.session, waiter.place))
    for who, place in asked:
        why = "it was closed before it had room"
        state.tell(who, control.NotPlaced(ticket=place.ticket, error="ActorDied", why=why))


def note_asker(state: State, record: ActorRecord, said: object) -> None:
    """This client, too, waits for its birth."""
    assert isinstance(said, Asked)
    state.actors.watch(said.session, record)
    record.asker = said


def tell_where(state: State, record: ActorRecord, said: object) -> None:
    """The client is told where it is, and will be told of its end."""
    assert isinstance(said, Asked)
    assert record.location is not None
    state.actors.watch(said.session, record)
    placed = control.Placed(ticket=said.place.ticket, location=record.location)
    state.tell(said.session, placed)


def tell_spawn(state: State, record: ActorRecord, said: object) -> None:
    """Its worker is told to start it."""
    worker, request, gpu_ids = record.worker, record.request, record.gpu_ids
    seal = state.admission.seals.seal(worker, request, gpu_ids)
    spawn = control.Spawn(request=request, gpu_ids=gpu_ids, again=record.again, seal=seal)
    state.tell(worker, spawn)


def take_place(state: State, record: ActorRecord, said: object) -> None:
    """Its request leaves the queue; its place and name are its own.  Its client will be told of its
    end, and has a lease in which to come back to a new master; other requests for the name are
    refused."""
    request = record.request
    state.waiting.remove(request.actor)
    state.actors.add(record)
    watcher = record.asker.session if record.asker else request.owner
    if watcher:
        state.actors.watch(watcher, record)
    if request.owner and request.owner not in state.sessions:
        state.leases.renew(request.owner, state.now)
    for waiter in state.waiting.for_name(request.name) if request.named else ():
        if waiter.request.actor != request.actor:
            refuse_name(state, waiter)


def answer_unknown(state: State, record: ActorRecord, said: object) -> None:
    """Questions about it that a new master has held are looked at again.  An automatic name is no
    news of an actor that its user named."""
    request = record.request
    answer(state, state.questions.release(Unknown(request.actor)))
    if request.named:
        answer(state, state.questions.release(Unknown("", request.name)))


def warn_of_crowd(state: State, record: ActorRecord, said: object) -> None:
    """Its script is told, once, if its actors outnumber the cores and do not wait for one."""
    if not state.is_crowd_told and state.uncounted > state.workers.ledger.cpus:
        state.is_crowd_told = True
        state.tell(record.request.job, control.Notice(text=shortage.crowd(state)))


def settle(state: State, record: ActorRecord, said: object) -> None:
    """It lives where its worker says, under the names with which it was placed."""
    assert isinstance(said, control.Location)
    request = record.request
    state.restarts.settle(request.actor)
    record.location = msgspec.structs.replace(
        said, actor=request.actor, name=request.name, class_name=request.class_name
    )


def tell_born(state: State, record: ActorRecord, said: object) -> None:
    """The client that waits is told where it is.  If that has ended meanwhile, it is closed."""
    if record.asker is None or record.location is None:
        return
    (who, place), record.asker = record.asker, None
    state.tell(who, control.Placed(ticket=place.ticket, location=record.location))
    if who not in state.sessions:
        close(state, control.End(actor=record.request.actor, grace_s=OWNER_GRACE_S))


def answer_questions(state: State, record: ActorRecord, said: object) -> None:
    """Questions about it that were held are looked at again."""
    answer(state, state.questions.release(record.request.actor))


def give_away(state: State, record: ActorRecord, said: object) -> None:
    """If its process has dialled in, it is given to a client that asked for its class."""
    tell_gifts(state, state.arrivals.add(record.request))


def serve_neighbors(state: State, record: ActorRecord, said: object) -> None:
    """Requests to be near it are tried again."""
    if state.waiting.any_near(record.request.actor):
        retry(state)


def tell_end(state: State, record: ActorRecord, said: object) -> None:
    """Its worker is told to end it; the shortest time that was asked for counts."""
    end = said
    if isinstance(end, control.End):
        before_s = record.ends_within_s
        record.ends_within_s = end.grace_s if before_s is None else min(before_s, end.grace_s)
    else:  # told again
        assert record.ends_within_s is not None
        end = control.End(actor=record.request.actor, grace_s=record.ends_within_s)
    state.tell(record.worker, end)


def tell_kill(state: State, record: ActorRecord, said: object) -> None:
    """Its worker is told to end it at once: another life of it counts."""
    state.tell(record.worker, control.End(actor=record.request.actor, grace_s=0.0, kill=True))


def free_place(state: State, record: ActorRecord, said: object) -> None:
    """Its place is free, and its name unless it is between two lives; its key is taken back."""
    request = record.request
    state.delegates.take_back(request.actor)
    state.actors.remove(record)
    state.workers.ledger.release(record.worker, request.resources, tuple(record.gpu_ids))
    if request.actor not in state.restarts.due:
        state.actors.free_name(request)


def move(state: State, record: ActorRecord, said: object) -> None:
    """Its place is the other one."""
    assert isinstance(said, ActorRecord)
    said.asker, said.ends_within_s = record.asker, record.ends_within_s
    free_place(state, record, said)
    take_place(state, said, said)


def ask_again(state: State, record: ActorRecord, said: object) -> None:
    """It is asked for again, by itself: others of its group may live.  Nobody was told of it."""
    if record.asker and record.asker.session in state.sessions:
        who, place = record.asker
        alone = msgspec.structs.replace(place.request, together=1)
        ask(state, who, msgspec.structs.replace(place, request=alone))


def remember_end(state: State, record: ActorRecord, said: object) -> None:
    """How it ended is kept for clients that ask late, and it is nobody's any more."""
    assert isinstance(said, control.Obituary)
    state.actors.remember(said)
    state.arrivals.remove(said.actor)


def refuse_asker(state: State, record: ActorRecord, said: object) -> None:
    """The client that waits for its birth is told why there was none."""
    assert isinstance(said, control.Obituary)
    if record.asker is None:
        return
    (who, place), record.asker = record.asker, None
    error, why = "WorkerLost", said.why
    if not said.lost:
        how = "" if said.exit is None else f" ({said.exit})"
        error, why = "ActorDied", f"its process ended at birth{how}: {said.why} {said.stderr}"
    state.tell(who, control.NotPlaced(ticket=place.ticket, error=error, why=why))
    give_up_next_life(state, record, said)


def tell_watchers(state: State, record: ActorRecord, said: object) -> None:
    """All who watch it are told of its end, and the client in it has ended too."""
    assert isinstance(said, control.Obituary)
    for session in record.watchers:
        state.tell(session, control.Died(obituary=said))
    state.delegates.take_back(said.actor)
    for session in state.sessions.inside.of(said.actor):
        end_session(state, session)


def start_next_life(state: State, record: ActorRecord, said: object) -> None:
    """It begins its next life in the same place."""
    record.request = msgspec.structs.replace(record.request, life=record.request.life + 1)
    record.location, record.again = None, True


def await_maker(state: State, record: ActorRecord, said: object) -> None:
    """Its maker is to ask for the next life; it keeps its name till then."""
    assert isinstance(said, control.Obituary)
    state.restarts.expect(record.request, said)
    state.actors.names.setdefault(record.request.name, said.actor)


def give_up_next_life(state: State, record: ActorRecord, said: object) -> None:
    """If its next life was due, there is none after all."""
    if due := state.restarts.settle(record.request.actor):
        state.actors.remember(msgspec.structs.replace(due.obituary, restarting=False))
        end_for_good(state, record, said)


def end_for_good(state: State, record: ActorRecord, said: object) -> None:
    """Its name is free, its lives are forgotten, and questions about it are answered."""
    state.restarts.settle(record.request.actor)
    state.restarts.begun.pop(record.request.actor, None)
    state.actors.free_name(record.request)
    answer_questions(state, record, said)


def free_owner(state: State, record: ActorRecord, said: object) -> None:
    """An owner that has said goodbye may go, if this was its last actor."""
    say_farewell(state, record.request.owner)


def remove_restart_file(state: State, record: ActorRecord, said: object) -> None:
    """Its worker removes what a next life would have been started from."""
    request = record.request
    if record.worker in state.workers and request.max_restarts and not request.owner:
        state.tell(record.worker, control.End(actor=request.actor, grace_s=0.0))


def serve_waiting(state: State, record: ActorRecord, said: object) -> None:
    """Requests that wait are tried for its room; all of them, if its name was wanted."""
    if state.waiting.for_name(record.request.name):  # that is free everywhere, room only there
        retry(state)
    elif record.worker in state.workers:
        retry(state, record.worker)


# --- the table ------------------------------------------------------------------------------------


Step = Callable[[State, ActorRecord, object], None]


class Rule(NamedTuple):
    """What follows from an event: where an actor stands then, if no step causes another, by where
    it stood; and what is done, in this order."""

    event: Event
    moves: dict[Phase, Phase]
    steps: tuple[Step, ...] = ()


ENDED, WAITING, STARTING, RESUMING, ALIVE, CANCELLED, ENDING, RESTARTING = Phase
_HAS_PLACE = (STARTING, RESUMING, ALIVE, CANCELLED, ENDING)
_PLACED: tuple[Step, ...] = (tell_spawn, take_place, answer_unknown, warn_of_crowd)
_BORN: tuple[Step, ...] = (settle, tell_born, answer_questions, give_away, serve_neighbors)
_LEFT: tuple[Step, ...] = (free_place, remember_end, refuse_asker, tell_watchers)
_FREED: tuple[Step, ...] = (free_owner, remove_restart_file, serve_waiting)
_GONE: tuple[Step, ...] = (*_LEFT, end_for_good, *_FREED)
_BETWEEN: tuple[Step, ...] = (*_LEFT, await_maker, *_FREED)

# The table in docs/design.md is made from this.
RULES = (
    Rule(Event.ASKED, {ENDED: WAITING, WAITING: WAITING, RESTARTING: WAITING}, (queue,)),
    Rule(
        Event.ASKED,
        {STARTING: STARTING, RESUMING: STARTING, CANCELLED: CANCELLED},
        (note_asker,),
    ),
    Rule(Event.ASKED, {ALIVE: ALIVE, ENDING: ENDING}, (tell_where,)),
    Rule(Event.ROOM, {WAITING: STARTING}, _PLACED),
    Rule(Event.REFUSED, {WAITING: ENDED}, (tell_refusal, give_up_next_life)),
    Rule(
        Event.BROUGHT,
        {ENDED: RESUMING, WAITING: RESUMING, RESTARTING: RESUMING},
        (take_place,),
    ),
    Rule(
        Event.BORN,
        {STARTING: ALIVE, RESUMING: ALIVE, ALIVE: ALIVE, CANCELLED: ENDING, ENDING: ENDING},
        _BORN,
    ),
    Rule(Event.CLOSED, {WAITING: ENDED}, (withdraw, give_up_next_life)),
    Rule(
        Event.CLOSED,
        {
            STARTING: CANCELLED,
            RESUMING: CANCELLED,
            ALIVE: ENDING,
            CANCELLED: CANCELLED,
            ENDING: ENDING,
        },
        (tell_end,),
    ),
    Rule(Event.CLOSED, {RESTARTING: ENDED}, (give_up_next_life,)),
    Rule(Event.DIED, dict.fromkeys(_HAS_PLACE, ENDED), _GONE),
    Rule(Event.MAKER_RESTARTS, {ALIVE: RESTARTING}, _BETWEEN),
    Rule(Event.WORKER_RESTARTS, {ALIVE: RESUMING}, (tell_watchers, start_next_life, tell_spawn)),
    Rule(Event.REPLACED, dict.fromkeys(_HAS_PLACE, RESTARTING), (tell_kill, *_BETWEEN)),
    Rule(
        Event.MOVED,
        {STARTING: STARTING, RESUMING: RESUMING, CANCELLED: CANCELLED},
        (tell_kill, move),
    ),
    Rule(
        Event.UNREACHABLE,
        {STARTING: WAITING},
        (free_place, ask_again, answer_questions, free_owner),
    ),
    Rule(Event.UNREACHABLE, {RESUMING: RESUMING, ALIVE: ALIVE, ENDING: ENDING}),
    Rule(Event.UNREACHABLE, {CANCELLED: ENDED}, _GONE),
    Rule(Event.PRESENT, {STARTING: STARTING, RESUMING: RESUMING, ALIVE: ALIVE}),
    Rule(Event.PRESENT, {CANCELLED: CANCELLED, ENDING: ENDING}, (tell_end,)),
    Rule(Event.ABSENT, {STARTING: STARTING, RESUMING: RESUMING}, (tell_spawn,)),
)
TABLE = {(before, rule.event): rule for rule in RULES for before in rule.moves}


def happen(state: State, event: Event, record: ActorRecord, said: object = None) -> None:
    """Do what the table says."""
    for step in TABLE[phase_of(state, record.request.actor), event].steps:
        step(state, record, said)


# --- what clients want ----------------------------------------------------------------------------


def ask(state: State, who: str, place: control.Place) -> None:
    """A session asks for an actor; it is the owner, if there is to be one."""
    place = state.sessions[who].stamp(place, state.counts_cpus)
    request, asked = place.request, Asked(who, place)
    if refusal := _why_forbidden(state, request):
        error, why = refusal
        state.tell(who, control.NotPlaced(ticket=place.ticket, error=error, why=why))
        return
    record = state.actors.records.get(request.actor)
    if record is not None and record.request.life != request.life:
        happen(state, Event.REPLACED, record, record.lost(restarting=True))
        record = None
    happen(state, Event.ASKED, record or ActorRecord(request, asker=asked), asked)


def _why_forbidden(state: State, request: control.Request) -> tuple[str, str] | None:
    """Return the error and the words for a request that may not be made at all."""
    if not state.admission.is_listed(request.key):
        return "NotAllowed", "this key was revoked; ask who runs the cluster for another"
    actor = request.actor
    due = state.restarts.due.get(actor)
    for other in (state.actors.records.get(actor), state.waiting.get(actor), due):
        if other is None:
            continue
        if (other.request.owner, other.request.key) != (request.owner, request.key):
            return "NotAllowed", "this actor is another client's"
        if request.life < other.request.life:
            return "ActorDied", "this life of the actor is over: a later one was asked for"
    if due and request.life == due.request.life:
        return "ActorDied", "this life of the actor is over, and another follows"
    return None


def locate(state: State, who: str, ask: control.Locate) -> None:
    """Tell a session where an actor is, or hold the question until it can be answered."""
    table = state.actors
    if ask.name and table.ending(ask.name):  # whoever finds it would be told of its end
        state.tell(who, control.Located(ticket=ask.ticket))
        return
    actor = ask.actor or table.names.get(ask.name, "")
    record = table.records.get(actor)
    if record is None:
        is_made = actor in state.restarts.due
    else:
        is_away = ask.unreached and record.worker in state.workers.ledger.away
        is_made = record.location is None or is_away
    if is_made:
        state.questions.hold(actor, (who, ask))
        return
    if state.is_learning and record is None and actor not in table.deaths:
        state.questions.hold(Unknown(actor, "" if actor else ask.name), (who, ask))
        return
    if record is not None:
        table.watch(who, record)
    located = control.Located(
        ticket=ask.ticket,
        location=record.location if record else None,
        obituary=table.deaths.get(actor),
    )
    state.tell(who, located)


def answer(state: State, questions: Iterable[Question]) -> None:
    """Look at questions again: there is news of what they are about."""
    for who, question in questions:
        session = state.sessions.get(who)
        if isinstance(question, control.End):  # whoever asked for it, and may have gone
            hear_end(state, who, question)
        elif session is None:
            continue
        elif isinstance(question, control.Locate):
            locate(state, who, question)
        elif not session.leaving:
            ask(state, who, question)


def tell_gifts(state: State, gifts: Iterable[Gift]) -> None:
    """Tell clients of the actors that they are given."""
    for actor, (session, ticket) in gifts:
        record = state.actors.records[actor]
        state.actors.watch(session, record)
        state.tell(session, control.Located(ticket=ticket, location=record.location))


def hear_end(state: State, who: str, end: control.End) -> None:
    """A session has an actor ended; it asks again until it hears of the end."""
    actor = end.actor
    if end.kill and (session := state.sessions.get(who)) is not None:
        hello, inside = session.hello, state.actors.records.get(session.hello.actor)
        by = inside.request.name if inside else f"pid {hello.pid} on {hello.machine}"
        end = msgspec.structs.replace(end, by=by)
    close(state, end)
    if actor in state.actors.records:
        return
    if state.is_learning and actor not in state.actors.deaths:
        state.questions.hold(Unknown(actor), (who, end))
    else:
        none = control.Obituary(actor=actor, life=0, asked=True)
        state.tell(who, control.Died(obituary=state.actors.deaths.get(actor, none)))


def close(state: State, end: control.End) -> None:
    """Have an actor end, and not be made."""
    actor, due = end.actor, state.restarts.due.get(end.actor)
    if (record := state.actors.records.get(actor)) is not None:
        happen(state, Event.CLOSED, record, end)
    elif waiter := state.waiting.get(actor):
        happen(state, Event.CLOSED, ActorRecord(waiter.request), end)
    elif held := state.questions.request_of(actor):
        happen(state, Event.CLOSED, ActorRecord(held), end)
    elif due:
        happen(state, Event.CLOSED, ActorRecord(due.request), end)


# --- ends -----------------------------------------------------------------------------------------


def end_owned(state: State, who: str) -> None:
    """An owner has ended, or has said goodbye."""
    for actor in state.actors.by_owner.of(who):
        close(state, control.End(actor=actor, grace_s=OWNER_GRACE_S))
    for due in state.restarts.due_by(who):
        if due.request.actor not in state.actors.records:
            close(state, control.End(actor=due.request.actor, grace_s=OWNER_GRACE_S))


def end_session(state: State, who: str) -> None:
    """A client has ended, and with it the actors that it owns."""
    if (session := state.sessions.end(who)) is None:
        return
    state.leases.end(who)
    state.instructions.append(LetGo(who))
    state.wait_graph.end(session.hello.actor)
    state.actors.unwatch(who)
    tell_gifts(state, state.arrivals.end_session(who))
    state.waiting.remove_session(who)
    end_owned(state, who)
    hear_figures(state, who)


def hear_figures(state: State, peer: str) -> None:
    """A peer has said how its actors are, or has gone: answer the status that waited for it."""
    state.status_queries.hear(peer)
    answer_status(state)


def answer_status(state: State) -> None:
    """Answer those who asked for the status, if all have said how they are, or had their time."""
    for session, ticket in state.status_queries.due(state.now):
        tell_status(state, session, ticket)


def tell_status(state: State, who: str, ticket: int) -> None:
    state.tell(who, status.status(ticket, state))


def say_farewell(state: State, who: str) -> None:
    """Let a client go when its actors have ended and their last output has passed."""
    session = state.sessions.get(who)
    if session and session.leaving and who not in state.actors.by_owner:
        state.tell(who, control.Farewell())
        end_session(state, who)


def die(state: State, obituary: control.Obituary) -> None:
    """A life of an actor has ended; there may be another."""
    record = state.actors.records.get(obituary.actor)
    if record is None or record.request.life != obituary.life:
        return
    if record.ends_within_s is not None:  # it died before its worker had heard so
        obituary = msgspec.structs.replace(obituary, asked=True)
    event = _after(state, record, obituary)
    is_last = event is Event.DIED
    obituary = msgspec.structs.replace(obituary, restarting=not is_last)
    if not obituary.asked:
        told = msgspec.structs.replace(obituary, flight_record=b"", begun={})
        machine = record.location.machine if record.location else ""
        ended = UnaskedEnd(record.request, machine, told, state.now)
        state.actors.unasked_ends.appendleft(ended)
    happen(state, event, record, obituary)


def _after(state: State, record: ActorRecord, obituary: control.Obituary) -> Event:
    """Return the event that a death is: whether another life follows, and where it comes from."""
    request = record.request
    if record.location is None or state.is_closing or obituary.asked or not request.max_restarts:
        return Event.DIED
    session = state.sessions.get(request.maker)
    maker_is_there = request.maker in state.leases and not (session and session.leaving)
    if not request.owner and not obituary.lost:
        event = Event.WORKER_RESTARTS
    elif maker_is_there:
        event = Event.MAKER_RESTARTS
    else:
        return Event.DIED
    return event if state.restarts.count(request, state.now) else Event.DIED


# --- births, and workers that cannot be reached ---------------------------------------------------


def spawned(state: State, worker: str, location: control.Location, since: float) -> None:
    """Its worker says that an actor is born."""
    record = state.actors.records.get(location.actor)
    if record is None or record.worker != worker:
        state.tell(worker, control.End(actor=location.actor, grace_s=0.0, kill=True))
    elif record.request.life == location.life:
        record.since = since
        happen(state, Event.BORN, record, location)


def place_elsewhere(state: State, worker: str) -> None:
    """Nothing is placed on this worker now: what was about to be born there is born elsewhere."""
    for record in state.actors.on_worker(worker):
        if state.actors.records.get(record.request.actor) is record:
            happen(state, Event.UNREACHABLE, record, record.closed())


# --- room -----------------------------------------------------------------------------------------


def serve(state: State, waiter: Waiter) -> bool:
    """Place a request, or the group that it is of, or refuse it; false if it has to wait."""
    gang = gang_of(waiter.request)
    if not gang:
        return _serve_one(state, waiter)
    waiters = state.waiting.gang(gang)
    if not state.has_asked_whole(waiter.request) or not _may_place(state):
        return False
    if refusal := shortage.why_never(waiter.request, len(waiters), state):
        for each in waiters:
            refuse(state, each, *refusal)
        return True
    request, among = waiter.request, state.workers_for(waiter.request)
    needs = request.resources, request.python, len(waiters), among
    if state.workers.ledger.copies(*needs) < len(waiters):
        return False
    for each in waiters:
        is_there = state.waiting.get(each.request.actor) is each
        if is_there and not _serve_one(state, each):  # it waits for its name, by itself
            alone = msgspec.structs.replace(each.request, together=1)
            place = msgspec.structs.replace(each.place, request=alone)
            state.waiting.remove(each.request.actor)
            state.waiting.add(each.session, place, each.since, each.deadline)
    return True


def _may_place(state: State) -> bool:
    return bool(state.workers.records) and not state.is_closing


def _serve_one(state: State, waiter: Waiter) -> bool:
    request, ledger = waiter.request, state.workers.ledger
    holder = state.holder_of(request.name)
    if request.named and holder and holder.named and holder.actor != request.actor:
        ending = state.actors.ending(request.name)
        if ending and state.sessions[waiter.session].hello.actor != ending:  # else for itself
            return False
        refuse_name(state, waiter)
        return True
    if not _may_place(state):
        return False
    among = state.workers_for(request)
    if placement := ledger.place(request.resources, request.python, among):
        asked = Asked(waiter.session, waiter.place)
        record = ActorRecord(request, placement.worker, list(placement.gpu_ids), asker=asked)
        happen(state, Event.ROOM, record)
        return True
    if refusal := shortage.why_never(request, 1, state):
        refuse(state, waiter, *refusal)
        return True
    return False


def refuse(state: State, waiter: Waiter, error: str, why: str) -> None:
    """Answer that an actor is not made; `error` names a class of errors.py."""
    if state.waiting.get(waiter.request.actor) is waiter:  # and was not answered meanwhile
        refusal = control.NotPlaced(ticket=waiter.place.ticket, error=error, why=why)
        record = ActorRecord(waiter.request, asker=Asked(waiter.session, waiter.place))
        happen(state, Event.REFUSED, record, refusal)


def refuse_name(state: State, waiter: Waiter) -> None:
    refuse(state, waiter, "NameTaken", name_taken(waiter.request.name, "on this cluster"))


def retry(state: State, worker: str | None = None) -> None:
    """Place or refuse waiting requests, where that is possible now.

    `worker`: there is new room on this one, and nowhere else.
    """
    ledger = state.workers.ledger
    if _serve_kept(state):
        worker = None
    turns = state.waiting.turns(
        lambda asked, python: worker is None or ledger.has_room(worker, asked, python)
    )
    for waiter in turns:
        _serve_waiter(state, waiter)
    if _serve_kept(state):  # its request has found a place elsewhere
        retry(state)


def _serve_kept(state: State) -> bool:
    """Serve the request for which room is kept, if that room is free; true if none is any more."""
    is_released, waiter = kept_room.release_if_ready(state)
    if waiter is not None:
        _serve_waiter(state, waiter)
    return is_released


def _serve_waiter(state: State, waiter: Waiter) -> None:
    """Serve a request that was told to wait, and say so."""
    gang = gang_of(waiter.request)
    waiters = state.waiting.gang(gang) if gang else [waiter]
    if serve(state, waiter):
        for each in waiters:
            state.tell(each.session, control.Queued(ticket=each.place.ticket, why=""))


def look_after_waiting(state: State) -> None:
    """Now and then: refuse requests that have waited for room as long as they would, and keep room
    for one that others overtake."""
    for waiter in state.waiting.overdue(state.now):
        why = shortage.why_it_waits(waiter.request, state)
        refuse(state, waiter, "NoResources", f"no room for {waiter.place.patience_s:g} s: {why}")
    if kept_room.review(state) or _serve_kept(state):
        retry(state)
