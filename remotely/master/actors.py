"""The life cycle of an actor in the master: one state machine, as a table of transitions.

    ENDED         not requested yet, or ended
    WAITING       requested; there is no room for it, or its name may be taken
    STARTING      placed; its worker is starting it, and a client waits for that
    RESUMING      the same without a client: its worker starts the next life, or started the actor
                  for the previous master
    ALIVE         started; clients that ask are sent its location
    CANCELLED     asked to end before it has started
    MOVING        alive, but its machine is drained: it ends, and its next life is placed elsewhere
    ENDING        asked to end, but still alive
    RESTARTING    between two lives: its maker is expected to request the next

`RULES` below lists the transitions.  A pair of phase and event that is not in it cannot occur.  The
steps of a transition run in order: free room is offered to other requests last, after everyone has
been notified of the death that freed it.  Steps may cause further events.  A death makes room for a
waiting request; a placement takes a name from another request; refusing a request ends an actor
that was between two lives, and that end answers the deferred requests about it.

Restarts
    The master decides when a life ends, so all clients see the same: the obituary says whether the
    actor is restarted.  Clients then ask for the location of the next life.  They get the reply
    once that life has started, or is given up.

    event            next life started by        from                        where
    MAKER_RESTARTS   the client that made the    the class and arguments,    wherever there is room
                     actor                       which it keeps
    WORKER_RESTARTS  the worker of a detached    the restart file of the     on the same worker with
                     actor whose process died    last life                   the same resources

    So a detached actor survives the end of its maker, and of its own process.  It does not survive
    the loss of its machine if its maker is gone too.

Starts
    A start has its outcome before the constructor of the actor runs.  If it fails, the machine is
    to blame, not the actor (sickness.py).

Nothing here waits for a reply.  If a message cannot be sent, that is an event of its own
(`lose_route` in core.py).  So a request may be placed on an unreachable worker; it is then placed
again.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from remotely.errors import name_taken
from remotely.master import draining, lending, reservation, shortage, sickness, status
from remotely.master.admission import REVOKED
from remotely.master.arrivals import Assignment
from remotely.master.state import (
    RECOVERY,
    ActorRecord,
    Deferred,
    Forget,
    Requester,
    State,
    UnknownActor,
)
from remotely.master.waiting import RequestKind, Waiter, gang_of
from remotely.protocol import control
from remotely.protocol.lease import OWNER_GRACE_S, PLACE_S, STUCK_S, TICK_EVERY_S

WANTED_EVERY_S = 0.5  # at most this often owners are told that others wait for room
UNHEARD_S = 2 * TICK_EVERY_S  # a client that lives is heard more often
MIN_WAIT_S = 5.0  # that a request waits for the rest of its gang, or for the first machine


class Phase(StrEnum):
    """The phase of an actor's life."""

    ENDED = "ended"
    WAITING = "waiting"
    STARTING = "starting"
    RESUMING = "resuming"
    ALIVE = "alive"
    MOVING = "moving"
    CANCELLED = "cancelled"
    ENDING = "ending"
    RESTARTING = "restarting"


class LifeEvent(StrEnum):
    """An event in the life of an actor.  The comment names the type of the `data` of its steps."""

    REQUESTED = "a client requests this life"  # Requester
    PLACED = "a worker has room for it"
    REFUSED = "it cannot be placed, or waited too long"  # NotPlaced
    ADOPTED = "a worker registers with it"
    STARTED = "its worker reports that it has started"  # Location
    CLOSED = "it is asked to end, or its owner or maker has ended"  # End
    DIED = "its life has ended, and no other follows"  # Obituary
    MAKER_RESTARTS = "its life has ended, and its maker starts another"  # Obituary
    WORKER_RESTARTS = "its life has ended, and its worker starts another"  # Obituary
    REPLACED = "a later life is requested, or a worker registers with one"  # Obituary
    MOVED = "another worker registers with the same life"  # ActorRecord of that worker
    UNREACHABLE = "its worker is unreachable or lost"  # Obituary, if it was asked to end
    MOVES = "its machine is drained, and another has room"
    STAYS = "its worker agrees to withdraw its move"
    UNSTARTED = "its machine did not start it, and it is tried again"  # Obituary
    PRESENT = "its worker is back, and has it"
    ABSENT = "its worker is back and never received it, or may be able to start it now"


def phase_of(state: State, actor: str) -> Phase:
    """Derive the phase of an actor from the state; it is stored nowhere."""
    if (record := state.actors.records.get(actor)) is not None:
        if record.ends_within_s is not None:
            return Phase.ENDING if record.location else Phase.CANCELLED
        if record.location is not None:
            return Phase.MOVING if record.is_moving else Phase.ALIVE
        return Phase.STARTING if record.requester else Phase.RESUMING
    if actor in state.waiting or state.deferred.places(actor):
        return Phase.WAITING
    return Phase.RESTARTING if actor in state.restarts.pending else Phase.ENDED


# --- steps: each takes the record of the actor and the data of the event --------------------------


def place_or_queue(state: State, record: ActorRecord, data: object) -> None:
    """Place, refuse or queue the request; defer it if a worker may still register with an actor of
    this name."""
    assert isinstance(data, Requester)
    request, (client, place) = record.request, data
    state.waiting.remove(request.actor)
    holder = state.holder_of(request.name)
    if request.named and state.is_recovering and not (holder and holder.named):
        state.deferred.add(UnknownActor("", request.name), (client, place))
        why = "the master was restarted, and an actor of that name may come back"
        state.send(client, control.Queued(ticket=place.ticket, why=why))
        return
    is_starting, gang = not state.workers.records, gang_of(request)
    least_s = MIN_WAIT_S if is_starting or gang else 0.0
    deadline = state.now + max(place.patience_s, least_s)
    inside = state.sessions[client].hello.actor
    waiter = state.waiting.add(client, place, state.now, deadline, inside)
    if try_place(state, waiter):
        return
    waits = place.patience_s or is_starting or gang or _is_expected(state, request)
    if waits and try_on_loan(state, waiter):
        return
    if not waits:
        why = shortage.why_it_waits(request, state)
        refuse(state, waiter, "NoResources", f"no room: {why}")
    elif state.gang_is_complete(request):
        why = shortage.why_it_waits(request, state)  # the same for all of a gang
        for each in state.waiting.gang(gang) if gang else [waiter]:
            state.send(each.session, control.Queued(ticket=each.place.ticket, why=why))
        ask_for_spare_actors(state)


def ask_for_spare_actors(state: State) -> None:
    """Tell the owners of actors that are spare when idle that others wait for room."""
    if state.now >= state.wanted_room_at + WANTED_EVERY_S:
        state.wanted_room_at = state.now
        for owner in state.actors.spare_of:
            state.send(owner, control.RoomWanted())


def answer_refusal(
    state: State, client: str, request: control.Request, refusal: control.NotPlaced
) -> None:
    """Send the client the reason for which its request is refused, and record the event."""
    state.history.add_refusal(state.now, request, refusal.error, refusal.why)
    state.send(client, refusal)


def send_refusal(state: State, record: ActorRecord, data: object) -> None:
    """Remove the request from the queue and send its client the reason."""
    assert isinstance(data, control.NotPlaced)
    assert record.requester is not None
    state.waiting.remove(record.request.actor)
    answer_refusal(state, record.requester.session, record.request, data)


def withdraw_requests(state: State, record: ActorRecord, data: object) -> None:
    """Refuse all requests for the actor."""
    actor = record.request.actor
    requesters = state.deferred.withdraw(actor)
    if waiter := state.waiting.remove(actor):
        requesters.append(Requester(waiter.session, waiter.place))
    for client, place in requesters:
        why = "it was closed while it waited for room"
        state.send(client, control.NotPlaced(ticket=place.ticket, error="ActorDied", why=why))


def set_requester(state: State, record: ActorRecord, data: object) -> None:
    """Notify this client when the actor has started."""
    assert isinstance(data, Requester)
    state.actors.watch(data.session, record)
    record.requester = data


def send_location(state: State, record: ActorRecord, data: object) -> None:
    """Send the client the location, and notify it when the actor ends."""
    assert isinstance(data, Requester)
    assert record.location is not None
    state.actors.watch(data.session, record)
    placed = control.Placed(ticket=data.place.ticket, location=record.location)
    state.send(data.session, placed)


def send_spawn(state: State, record: ActorRecord, data: object) -> None:
    """Tell the worker to start the actor."""
    worker, request, gpu_ids = record.worker, record.request, record.gpu_ids
    record.is_between_tries = False
    seal = state.admission.seals.seal(worker, request, gpu_ids)
    spawn = control.Spawn(request=request, gpu_ids=gpu_ids, again=record.again, seal=seal)
    state.send(worker, spawn)


def record_placement(state: State, record: ActorRecord, data: object) -> None:
    """Add the actor's record and name, remove its request from the queue, and refuse other requests
    for the name.  The client is notified when the actor ends, and gets a lease in which to
    reconnect to a restarted master."""
    request = record.request
    state.waiting.remove(request.actor)
    state.actors.add(record)
    watcher = record.requester.session if record.requester else request.owner
    for session in (watcher, *state.actors.holders.of(request.actor)):
        if session:
            state.actors.watch(session, record)
    if request.owner and request.owner not in state.sessions:
        state.leases.renew(request.owner, state.now)
    if record.location is None:
        sickness.note_placed(state, record)
    for waiter in state.waiting.for_name(request.name) if request.named else ():
        if waiter.request.actor != request.actor:
            refuse_name(state, waiter)


def retry_recovery_requests(state: State, record: ActorRecord, data: object) -> None:
    """Retry the requests that were deferred while a restarted master did not know the actor.  An
    automatic name does not match a name that a user gave."""
    request = record.request
    retry_requests(state, state.deferred.release(UnknownActor(request.actor)))
    if request.named:
        retry_requests(state, state.deferred.release(UnknownActor("", request.name)))


def warn_if_oversubscribed(state: State, record: ActorRecord, data: object) -> None:
    """Warn the script once if its actors hold no CPUs and outnumber the cores."""
    if not state.told_oversubscribed and state.uncounted > state.workers.ledger.cpus:
        state.told_oversubscribed = True
        state.send(record.request.job, control.Notice(text=shortage.oversubscribed(state)))


def set_location(state: State, record: ActorRecord, data: object) -> None:
    """Set the location that the worker reports, with the names of the request."""
    assert isinstance(data, control.Location)
    request = record.request
    state.restarts.pop(request.actor)
    named = {"actor": request.actor, "name": request.name, "class_name": request.class_name}
    record.unstarted_at = None
    state.actors.set_location(record, msgspec.structs.replace(data, **named))


def notify_requester(state: State, record: ActorRecord, data: object) -> None:
    """Send the location to the waiting client.  Close the actor if that client has ended."""
    if record.requester is None or record.location is None:
        return
    (client, place), record.requester = record.requester, None
    state.send(client, control.Placed(ticket=place.ticket, location=record.location))
    if client not in state.sessions:
        close(state, control.End(actor=record.request.actor, grace_s=OWNER_GRACE_S))


def retry_deferred(state: State, record: ActorRecord, data: object) -> None:
    """Retry the deferred requests about the actor."""
    retry_requests(state, state.deferred.release(record.request.actor))


def assign_arrival(state: State, record: ActorRecord, data: object) -> None:
    """Assign a guest's actor to a client that asked for its class."""
    send_arrivals(state, state.arrivals.add(record.request))


def retry_near(state: State, record: ActorRecord, data: object) -> None:
    """Retry the requests to be placed near the actor."""
    if state.waiting.any_near(record.request.actor):
        retry_waiting(state)


def heal_machine(state: State, record: ActorRecord, data: object) -> None:
    """If its machine was sick, place others there again."""
    if sickness.note_started(state, record):
        retry_waiting(state, record.worker)


def send_end(state: State, record: ActorRecord, data: object) -> None:
    """Tell the worker to end the actor, within the shortest grace period that was requested."""
    end = data
    if isinstance(end, control.End):
        before_s = record.ends_within_s
        record.ends_within_s = end.grace_s if before_s is None else min(before_s, end.grace_s)
    else:  # send it again
        assert record.ends_within_s is not None
        end = control.End(actor=record.request.actor, grace_s=record.ends_within_s)
    state.send(record.worker, end)


def begin_move(state: State, record: ActorRecord, data: object) -> None:
    """Note for how long this move is tried: twice as long as the one before."""
    record.is_moving = True
    record.move_until = state.now + draining.FIRST_TRY_S * 2**record.moves
    record.moves += 1


def withdraw_move(state: State, record: ActorRecord, data: object) -> None:
    """Have its clients send their calls again; the next move may begin after a pause."""
    record.is_moving, record.move_until = False, state.now + draining.MOVE_PAUSE_S
    for session in record.watchers:
        moving = control.Moving(actor=record.request.actor, life=record.request.life, stays=True)
        state.send(session, moving)


def send_move(state: State, record: ActorRecord, data: object) -> None:
    """Have its clients keep further calls, and its worker end the actor after those that it has."""
    actor, life = record.request.actor, record.request.life
    for session in record.watchers:
        state.send(session, control.Moving(actor=actor, life=life))
    grace_s = draining.left_s(state, record.worker)
    state.send(record.worker, control.End(actor=actor, grace_s=grace_s, moves=True))


def send_kill(state: State, record: ActorRecord, data: object) -> None:
    """Tell the worker to kill the actor, because another life replaces it."""
    state.send(record.worker, control.End(actor=record.request.actor, grace_s=0.0, kill=True))


def release_placement(state: State, record: ActorRecord, data: object) -> None:
    """Release the room, revoke the key, and free the name unless the actor is restarting."""
    request = record.request
    state.delegates.revoke(request.actor)
    state.actors.remove(record)
    state.workers.ledger.release(record.worker, lending.held(record), tuple(record.gpu_ids))
    if request.actor not in state.restarts.pending:
        state.actors.free_name(request)


def move_placement(state: State, record: ActorRecord, data: object) -> None:
    """Move the actor to its place on the other worker."""
    assert isinstance(data, ActorRecord)
    # It may have another owner by now, but holds what it was started with.
    holds = data.request.resources
    data.request = msgspec.structs.replace(record.request, resources=holds)
    data.lender = record.lender
    data.requester, data.ends_within_s = record.requester, record.ends_within_s
    release_placement(state, record, data)
    record_placement(state, data, data)


def request_again(state: State, record: ActorRecord, data: object) -> None:
    """Request the actor again, without its gang, whose other members may have started.  If its
    client has ended, nobody requests it any more."""
    if record.requester and record.requester.session in state.sessions:
        client, place = record.requester
        alone = msgspec.structs.replace(place.request, together=1)
        request_actor(state, client, msgspec.structs.replace(place, request=alone))
    else:
        cancel_next_life(state, record, data)


def retry_later(state: State, record: ActorRecord, data: object) -> None:
    """Have its worker start the next life once it can."""
    record.is_between_tries = True
    if record.unstarted_at is None:
        record.unstarted_at = state.now


def record_end(state: State, record: ActorRecord, data: object) -> None:
    """Keep the obituary for clients that ask later, and remove the actor from the arrivals."""
    assert isinstance(data, control.Obituary)
    state.actors.remember(data)
    state.arrivals.remove(data.actor)


def refuse_requester(state: State, record: ActorRecord, data: object) -> None:
    """Send the client that waits for the start the reason why it failed."""
    assert isinstance(data, control.Obituary)
    if record.requester is None:
        return
    (client, place), record.requester = record.requester, None
    if data.lost:
        error, why = "WorkerLost", data.why
    elif data.refused:
        error, why = "NotStartable", f"the actor cannot be started: {data.why}"
    else:
        error, why = "ActorDied", _why_unstarted(data)
    state.send(client, control.NotPlaced(ticket=place.ticket, error=error, why=why))
    cancel_next_life(state, record, data)


def notify_watchers(state: State, record: ActorRecord, data: object) -> None:
    """Send the obituary to all watchers, and end the sessions of clients inside the actor."""
    assert isinstance(data, control.Obituary)
    for session in record.watchers:
        state.send(session, control.Died(obituary=data))
    state.delegates.revoke(data.actor)
    for session in state.sessions.inside.of(data.actor):
        end_session(state, session)


def start_next_life(state: State, record: ActorRecord, data: object) -> None:
    """Begin the next life in the same place."""
    record.request = msgspec.structs.replace(record.request, life=record.request.life + 1)
    record.again, record.is_moving, record.moves, record.move_until = True, False, 0, 0.0
    state.actors.set_location(record, None)
    sickness.note_placed(state, record)


def await_maker(state: State, record: ActorRecord, data: object) -> None:
    """Expect the maker to request the next life; keep the name until then."""
    assert isinstance(data, control.Obituary)
    maker = record.request.maker
    if maker not in state.leases:  # it has one lease in which to reconnect to a restarted master
        state.leases.renew(maker, state.now)
    if maker in state.sessions and maker not in record.watchers:  # of before the master's restart
        state.send(maker, control.Died(obituary=data))
    state.restarts.add(record.request, data)
    state.actors.names.setdefault(record.request.name, data.actor)


def cancel_next_life(state: State, record: ActorRecord, data: object) -> None:
    """Cancel a pending restart, if there is one."""
    if pending := state.restarts.pop(record.request.actor):
        state.actors.remember(msgspec.structs.replace(pending.obituary, restarting=False))
        forget_actor(state, record, data)


def forget_actor(state: State, record: ActorRecord, data: object) -> None:
    """Free the name, forget the restarts, and answer the deferred requests about the actor."""
    state.restarts.pop(record.request.actor)
    state.restarts.begun.pop(record.request.actor, None)
    for holder in state.actors.holders.of(record.request.actor):
        state.actors.let_go(holder, record.request.actor)
    state.actors.free_name(record.request)
    retry_deferred(state, record, data)


def release_owner(state: State, record: ActorRecord, data: object) -> None:
    """Let an owner that said goodbye go, if this was its last actor."""
    finish_goodbye(state, record.request.owner)


def remove_restart_file(state: State, record: ActorRecord, data: object) -> None:
    """Have the worker remove the restart file."""
    request = record.request
    if record.worker in state.workers and request.max_restarts and not request.owner:
        state.send(record.worker, control.End(actor=request.actor, grace_s=0.0))


def offer_room(state: State, record: ActorRecord, data: object) -> None:
    """Retry waiting requests: those that fit on this worker, or all if one waits for the name."""
    if state.waiting.take_back(record.request.name):  # it is free on every worker
        retry_waiting(state)
    elif record.worker in state.workers:
        retry_waiting(state, record.worker)


# --- the table ------------------------------------------------------------------------------------


Step = Callable[[State, ActorRecord, object], None]


class LifeRule(NamedTuple):
    """The transitions of an event: the next phase by the current one, if no step causes another
    event, and the steps in order."""

    event: LifeEvent
    moves: dict[Phase, Phase]
    steps: tuple[Step, ...] = ()


ENDED, WAITING, STARTING, RESUMING, ALIVE, MOVING, CANCELLED, ENDING, RESTARTING = Phase
_WITH_PLACE = (STARTING, RESUMING, ALIVE, MOVING, CANCELLED, ENDING)
_ON_PLACED: tuple[Step, ...] = (
    send_spawn,
    record_placement,
    retry_recovery_requests,
    warn_if_oversubscribed,
)
_ON_STARTED: tuple[Step, ...] = (
    set_location,
    notify_requester,
    retry_deferred,
    assign_arrival,
    retry_near,
    heal_machine,
)
_ON_DEATH: tuple[Step, ...] = (release_placement, record_end, refuse_requester, notify_watchers)
_ON_FREED: tuple[Step, ...] = (release_owner, remove_restart_file, offer_room)
_ON_LAST_DEATH: tuple[Step, ...] = (*_ON_DEATH, forget_actor, *_ON_FREED)
_ON_RESTART: tuple[Step, ...] = (*_ON_DEATH, await_maker, *_ON_FREED)

# The table in docs/design.md is made from this.
RULES = (
    LifeRule(
        LifeEvent.REQUESTED,
        {ENDED: WAITING, WAITING: WAITING, RESTARTING: WAITING},
        (place_or_queue,),
    ),
    LifeRule(
        LifeEvent.REQUESTED,
        {STARTING: STARTING, RESUMING: STARTING, CANCELLED: CANCELLED},
        (set_requester,),
    ),
    LifeRule(LifeEvent.REQUESTED, {ALIVE: ALIVE, MOVING: MOVING, ENDING: ENDING}, (send_location,)),
    LifeRule(LifeEvent.PLACED, {WAITING: STARTING}, _ON_PLACED),
    LifeRule(LifeEvent.REFUSED, {WAITING: ENDED}, (send_refusal, cancel_next_life)),
    LifeRule(
        LifeEvent.ADOPTED,
        {ENDED: RESUMING, WAITING: RESUMING, RESTARTING: RESUMING},
        (record_placement,),
    ),
    LifeRule(
        LifeEvent.STARTED,
        {
            STARTING: ALIVE,
            RESUMING: ALIVE,
            ALIVE: ALIVE,
            MOVING: MOVING,
            CANCELLED: ENDING,
            ENDING: ENDING,
        },
        _ON_STARTED,
    ),
    LifeRule(LifeEvent.CLOSED, {WAITING: ENDED}, (withdraw_requests, cancel_next_life)),
    LifeRule(
        LifeEvent.CLOSED,
        {
            STARTING: CANCELLED,
            RESUMING: CANCELLED,
            ALIVE: ENDING,
            MOVING: ENDING,
            CANCELLED: CANCELLED,
            ENDING: ENDING,
        },
        (send_end,),
    ),
    LifeRule(LifeEvent.CLOSED, {RESTARTING: ENDED}, (cancel_next_life,)),
    LifeRule(LifeEvent.DIED, dict.fromkeys(_WITH_PLACE, ENDED), _ON_LAST_DEATH),
    LifeRule(LifeEvent.MOVES, {ALIVE: MOVING}, (begin_move, send_move)),
    LifeRule(LifeEvent.STAYS, {MOVING: ALIVE}, (withdraw_move, retry_deferred)),
    LifeRule(
        LifeEvent.MAKER_RESTARTS,
        {RESUMING: RESTARTING, ALIVE: RESTARTING, MOVING: RESTARTING},
        _ON_RESTART,
    ),
    LifeRule(
        LifeEvent.WORKER_RESTARTS,
        {ALIVE: RESUMING, MOVING: RESUMING},
        (notify_watchers, start_next_life, send_spawn),
    ),
    LifeRule(LifeEvent.REPLACED, dict.fromkeys(_WITH_PLACE, RESTARTING), (send_kill, *_ON_RESTART)),
    LifeRule(
        LifeEvent.MOVED,
        {STARTING: STARTING, RESUMING: RESUMING, CANCELLED: CANCELLED},
        (send_kill, move_placement),
    ),
    LifeRule(
        LifeEvent.UNREACHABLE,
        {STARTING: WAITING},
        (release_placement, request_again, retry_deferred, release_owner),
    ),
    LifeRule(
        LifeEvent.UNREACHABLE,
        {RESUMING: RESUMING, ALIVE: ALIVE, MOVING: MOVING, ENDING: ENDING},
    ),
    LifeRule(LifeEvent.UNREACHABLE, {CANCELLED: ENDED}, _ON_LAST_DEATH),
    LifeRule(
        LifeEvent.UNSTARTED,
        {STARTING: WAITING},
        (release_placement, request_again, retry_deferred, release_owner),
    ),
    LifeRule(LifeEvent.UNSTARTED, {RESUMING: RESUMING}, (retry_later,)),
    LifeRule(LifeEvent.PRESENT, {STARTING: STARTING, RESUMING: RESUMING, ALIVE: ALIVE}),
    LifeRule(LifeEvent.PRESENT, {MOVING: MOVING}, (send_move,)),
    LifeRule(LifeEvent.PRESENT, {CANCELLED: CANCELLED, ENDING: ENDING}, (send_end,)),
    LifeRule(LifeEvent.ABSENT, {STARTING: STARTING, RESUMING: RESUMING}, (send_spawn,)),
)
TABLE = {(before, rule.event): rule for rule in RULES for before in rule.moves}


def apply_event(state: State, event: LifeEvent, record: ActorRecord, data: object = None) -> None:
    """Run the steps of a transition."""
    for step in TABLE[phase_of(state, record.request.actor), event].steps:
        step(state, record, data)


# --- requests of clients --------------------------------------------------------------------------


def request_actor(state: State, client: str, place: control.Place) -> None:
    """Handle a request for an actor.  The session becomes its owner, unless it is detached."""
    place = state.sessions[client].stamp(place, state.counts_cpus)
    request, requester = place.request, Requester(client, place)
    if refusal := _why_forbidden(state, request):
        error, why = refusal
        not_placed = control.NotPlaced(ticket=place.ticket, error=error, why=why)
        answer_refusal(state, client, request, not_placed)
        return
    record = state.actors.records.get(request.actor)
    if record is not None and record.request.life != request.life:
        apply_event(state, LifeEvent.REPLACED, record, record.lost(restarting=True))
        record = None
    record = record or ActorRecord(request, requester=requester)
    apply_event(state, LifeEvent.REQUESTED, record, requester)


def _why_forbidden(state: State, request: control.Request) -> tuple[str, str] | None:
    """Return the error and its message for a request that is not allowed; else None."""
    if not state.admission.is_listed(request.key):
        return "NotAllowed", REVOKED
    actor = request.actor
    pending = state.restarts.pending.get(actor)
    for other in (state.actors.records.get(actor), state.waiting.get(actor), pending):
        if other is None:
            continue
        if (other.request.owner, other.request.key) != (request.owner, request.key):
            return "NotAllowed", "this actor belongs to another client"
        if (other.request.name, other.request.named) != (request.name, request.named):
            return "NotAllowed", "this actor has another name"
        if request.life < other.request.life:
            return "ActorDied", "this life of the actor has ended: a later one was requested"
    if pending and request.life == pending.request.life:
        return "ActorDied", "this life of the actor has ended, and another follows"
    return None


def locate(state: State, client: str, ask: control.Locate) -> None:
    """Send a session the location of an actor, or defer the request."""
    table = state.actors
    if ask.name and table.ending(ask.name):  # its location would be of no use
        state.send(client, control.Located(ticket=ask.ticket))
        return
    actor = ask.actor or table.names.get(ask.name, "")
    record = table.records.get(actor)
    if record is None:
        is_pending = actor in state.restarts.pending
    else:
        is_away = ask.unreached and state.workers.ledger.is_away(record.worker)
        is_pending = record.location is None or is_away or record.is_moving
    if is_pending:
        state.deferred.add(actor, (client, ask))
        return
    if state.is_recovering and record is None and actor not in table.deaths:
        state.deferred.add(UnknownActor(actor, "" if actor else ask.name), (client, ask))
        return
    if record is not None:
        table.watch(client, record)
    located = control.Located(
        ticket=ask.ticket,
        location=record.location if record else None,
        obituary=table.deaths.get(actor),
    )
    state.send(client, located)


def retry_requests(state: State, requests: Iterable[Deferred]) -> None:
    """Handle deferred requests again."""
    for client, request in requests:
        session = state.sessions.get(client)
        if isinstance(request, control.End):  # even if its client has ended
            handle_end(state, client, request)
        elif session is None:
            continue
        elif isinstance(request, control.Hold):
            hold(state, client, request.actor)
        elif isinstance(request, control.LetGo):
            let_go(state, client, request.actor)
        elif isinstance(request, control.Locate):
            locate(state, client, request)
        elif not session.leaving:
            request_actor(state, client, request)


def send_arrivals(state: State, assignments: Iterable[Assignment]) -> None:
    """Send clients the locations of the actors that were assigned to them."""
    for actor, (session, ticket) in assignments:
        record = state.actors.records[actor]
        state.actors.watch(session, record)
        state.send(session, control.Located(ticket=ticket, location=record.location))


def handle_end(state: State, client: str, end: control.End) -> None:
    """Handle a request to end an actor.  The client repeats it until it gets the obituary."""
    actor = end.actor
    if end.kill and (session := state.sessions.get(client)) is not None:
        hello, inside = session.hello, state.actors.records.get(session.hello.actor)
        by = inside.request.name if inside else str(hello)
        end = msgspec.structs.replace(end, by=by)
    close(state, end)
    if actor in state.actors.records:
        return
    if state.is_recovering and actor not in state.actors.deaths:
        state.deferred.add(UnknownActor(actor), (client, end))
    else:
        none = control.Obituary(actor=actor, life=0, asked=True)
        state.send(client, control.Died(obituary=state.actors.deaths.get(actor, none)))


def close(state: State, end: control.End) -> None:
    """End an actor, or cancel its start or restart."""
    actor, pending = end.actor, state.restarts.pending.get(end.actor)
    if (record := state.actors.records.get(actor)) is not None:
        apply_event(state, LifeEvent.CLOSED, record, end)
        if record.is_between_tries:  # its worker has nothing to end
            end_life(state, record.closed())
    elif waiter := state.waiting.get(actor):
        apply_event(state, LifeEvent.CLOSED, ActorRecord(waiter.request), end)
    elif held := state.deferred.request_of(actor):
        apply_event(state, LifeEvent.CLOSED, ActorRecord(held), end)
    elif pending:
        apply_event(state, LifeEvent.CLOSED, ActorRecord(pending.request), end)


# --- ends -----------------------------------------------------------------------------------------


def hold(state: State, client: str, actor: str, giver: str = "") -> None:
    """Handle the news that a client has a handle which the client `giver` returned."""
    if giver in state.sessions:
        state.send(giver, control.Held(actor=actor))
    table = state.actors
    record = table.records.get(actor)
    if record is None and actor not in state.restarts.pending:
        if state.is_recovering and actor not in table.deaths:
            state.deferred.add(UnknownActor(actor), (client, control.Hold(actor=actor)))
        return
    request = record.request if record else state.restarts.pending[actor].request
    if client == request.owner or not request.owner or state.sessions[client].leaving:
        return
    if record is not None:
        table.watch(client, record)
    table.hold(client, actor)


def let_go(state: State, client: str, actor: str) -> None:
    """Handle the news that a client has no handle of an actor any more.

    A restarted master learns of the holders only as they reconnect, and its workers name the first
    owner: so it answers at the end of its recovery, unless it knows of a holder.
    """
    table = state.actors
    record, pending = table.records.get(actor), state.restarts.pending.get(actor)
    table.let_go(client, actor)
    known = record or pending
    is_only_held = known is not None and known.request.owner != client
    if is_only_held or (record and table.pass_on(record)):
        state.send(client, control.LetGoHeard(actor=actor))
        withdraw_moves(state)
    elif state.is_recovering and actor not in table.deaths:
        state.deferred.add(RECOVERY, (client, control.LetGo(actor=actor)))
    else:
        handle_end(state, client, control.End(actor=actor, grace_s=PLACE_S))


def close_owned(state: State, client: str) -> None:
    """Close the actors of an owner that has ended, or has said goodbye, unless others hold them."""
    for actor in state.actors.by_owner.of(client):
        if not state.actors.pass_on(state.actors.records[actor]):
            close(state, control.End(actor=actor, grace_s=OWNER_GRACE_S))
    for pending in state.restarts.pending_of(client):
        if pending.request.actor not in state.actors.records:
            close(state, control.End(actor=pending.request.actor, grace_s=OWNER_GRACE_S))
    withdraw_moves(state)  # of actors that it made, and that live on


def end_session(state: State, client: str) -> None:
    """Remove a client that has ended, and close the actors that it owns."""
    if (session := state.sessions.remove(client)) is None:
        return
    state.timelines.remove_peer(client)
    state.leases.end(client)
    state.instructions.append(Forget(client))
    if state.wait_graph.is_of(client, session.hello.actor):
        state.wait_graph.end(session.hello.actor)
    state.actors.unwatch(client)
    send_arrivals(state, state.arrivals.end_session(client))
    state.waiting.remove_session(client)
    for actor in state.actors.held_by.of(client):
        state.actors.let_go(client, actor)
    close_owned(state, client)
    handle_figures(state, client)


def handle_figures(state: State, peer: str) -> None:
    """Note that a peer has sent its figures, or is gone, and send the statuses that are due."""
    state.status_queries.remove_peer(peer)
    send_due_statuses(state)


def send_due_statuses(state: State) -> None:
    """Send the requested statuses if all peers have replied, or have timed out."""
    for session, ticket in state.status_queries.due(state.now):
        send_status(state, session, ticket)


def send_status(state: State, client: str, ticket: int) -> None:
    state.send(client, status.status(ticket, state))


def finish_goodbye(state: State, client: str) -> None:
    """Let a client that said goodbye go, once all its actors have ended."""
    session = state.sessions.get(client)
    if session and session.leaving and client not in state.actors.by_owner:
        state.send(client, control.Farewell())
        end_session(state, client)


def end_life(state: State, obituary: control.Obituary) -> None:
    """Handle the end of a life, after which the actor may be restarted."""
    record = state.actors.records.get(obituary.actor)
    if record is None or record.request.life != obituary.life:
        return
    if record.ends_within_s is not None:  # its worker may not have known
        obituary = msgspec.structs.replace(obituary, asked=True)
    event = _death_event(state, record, obituary)
    if record.location is None:
        sickness.note_outcome(state, record.worker)
        if obituary.unstarted:
            is_benched = event is LifeEvent.UNSTARTED
            sickness.blame(state, record, _why_unstarted(obituary), is_benched)
    if event is LifeEvent.UNSTARTED:
        apply_event(state, event, record, obituary)
        return
    is_last = event is LifeEvent.DIED
    obituary = msgspec.structs.replace(obituary, restarting=not is_last)
    if not obituary.asked:
        machine = record.location.machine if record.location else ""
        state.history.add_end(state.now, record.request, machine, obituary)
    if event is LifeEvent.MAKER_RESTARTS and record.worker in state.workers.draining:
        obituary = msgspec.structs.replace(obituary, moved=True)  # a crash too: it counts, above
    apply_event(state, event, record, obituary)


def _death_event(state: State, record: ActorRecord, obituary: control.Obituary) -> LifeEvent:
    """Return the event of a death: whether the actor is restarted, and by whom."""
    request = record.request
    if record.location is None and obituary.unstarted and sickness.goes_on(state, record):
        return LifeEvent.UNSTARTED
    if state.is_closing or obituary.asked or not request.max_restarts:
        return LifeEvent.DIED
    if record.location is None and not (record.again and obituary.lost and obituary.moved):
        return LifeEvent.DIED
    # A detached actor is restarted where it was, unless that machine is lost or about to leave.
    is_drained = obituary.moved or record.worker in state.workers.draining
    may_connect = obituary.moved and state.is_recovering
    if (request.owner or obituary.lost or is_drained) and (state.has_maker(request) or may_connect):
        event = LifeEvent.MAKER_RESTARTS
    elif not request.owner and not obituary.lost:
        event = LifeEvent.WORKER_RESTARTS
    else:
        return LifeEvent.DIED
    return event if obituary.moved or state.restarts.allow(request, state.now) else LifeEvent.DIED


def _why_unstarted(obituary: control.Obituary) -> str:
    how = "" if obituary.exit is None else f" ({obituary.exit})"
    return f"its process ended while starting{how}: {obituary.why} {obituary.stderr}".rstrip()


# --- starts, and unreachable workers --------------------------------------------------------------


def handle_spawned(state: State, worker: str, location: control.Location, since: float) -> None:
    """Handle the report of a worker that an actor has started."""
    record = state.actors.records.get(location.actor)
    if record is None or record.worker != worker:
        state.send(worker, control.End(actor=location.actor, grace_s=0.0, kill=True))
    elif record.request.life == location.life:
        record.since = since
        apply_event(state, LifeEvent.STARTED, record, location)


def handle_begun(state: State, record: ActorRecord) -> None:
    """Handle the report that the next life of an actor runs its constructor."""
    if record.location is None:
        record.unstarted_at, record.is_between_tries = None, False
        state.actors.begin(record)
        heal_machine(state, record, None)


def handle_unreachable(state: State, worker: str) -> None:
    """Place the actors that were about to start on a worker elsewhere."""
    for record in state.actors.on_worker(worker):
        if state.actors.records.get(record.request.actor) is record:
            apply_event(state, LifeEvent.UNREACHABLE, record, record.closed())


def review_starts(state: State) -> None:
    """Give up the starts that are overdue, and try machines that were sick.  Run at each tick."""
    for record in sickness.overdue(state):
        actor, worker, life = record.request.actor, record.worker, record.request.life
        if not state.actors.is_starting(actor, worker):  # an earlier one has ended it
            continue
        why = f"its machine has started nothing for {STUCK_S:.0f} s"
        end_life(state, control.Obituary(actor=actor, life=life, unstarted=True, why=why))
        if not state.actors.is_on(actor, worker):
            state.send(worker, control.End(actor=actor, grace_s=0.0, kill=True))
            sickness.note_given_up(state, record)
    for worker in sickness.due_for_trial(state):
        if unstarted := sickness.retries(state, worker):
            apply_event(state, LifeEvent.ABSENT, unstarted[0])
            sickness.note_placed(state, unstarted[0])
        else:
            state.workers.ledger.try_again(worker)
            retry_waiting(state, worker)


# --- drained machines -----------------------------------------------------------------------------


def handle_drain(state: State, client: str, ask: control.Drain) -> None:
    """Handle the request of an operator to drain a machine, or to use it as before."""
    workers = draining.workers_on(state, ask.machine)
    if not workers:
        why = shortage.no_machine(ask.machine, state.workers.machines())
        state.send(client, control.DrainHeard(ticket=ask.ticket, why=why))
        return
    machine = state.workers.records[workers[0]].register.machine
    if ask.undo and not state.workers.must_leave.isdisjoint(workers):
        why = (
            f"{machine} cannot stay: its worker was sent SIGTERM, and ends. To have the machine "
            "back, let it join again"
        )
        state.send(client, control.DrainHeard(ticket=ask.ticket, why=why))
        return
    for worker in workers:
        state.send(worker, msgspec.structs.replace(ask, ticket=0, machine=""))
        if ask.undo:
            draining.undo(state, worker)
        else:
            draining.begin(state, worker, ask.within_s)
    there = [record for worker in workers for record in state.actors.on_worker(worker)]
    heard = control.DrainHeard(
        ticket=ask.ticket,
        machine=machine,
        actors=len(there),
        movable=sum(draining.is_movable(state, record) for record in there),
    )
    state.send(client, heard)
    if ask.undo:
        retry_waiting(state)
    review_drains(state)


def begin_drain(state: State, worker: str, within_s: float) -> None:
    """Handle the report of a worker that it was told to leave within this time."""
    draining.begin(state, worker, within_s, must_leave=True)
    review_drains(state)


def review_drains(state: State) -> None:
    """Move the actors of drained machines for which another has room.  Run at each tick."""
    withdraw_moves(state)
    for record in draining.to_move(state):
        apply_event(state, LifeEvent.MOVES, record)


def withdraw_moves(state: State) -> None:
    """Ask the workers of actors that should not move, or have tried to for long, to keep them."""
    for record in draining.to_withdraw(state):
        state.send(record.worker, control.Stay(actor=record.request.actor))


def adopt_move(state: State, record: ActorRecord) -> None:
    """Go on with a move that the master before this one has begun."""
    if phase_of(state, record.request.actor) is Phase.ALIVE:
        apply_event(state, LifeEvent.MOVES, record)


def handle_stay(state: State, record: ActorRecord) -> None:
    """Handle the report of a worker that it keeps an actor whose move was withdrawn."""
    if phase_of(state, record.request.actor) is Phase.MOVING:
        apply_event(state, LifeEvent.STAYS, record)


def ask_to_replace(state: State) -> None:
    """Tell the owners of actors that do not move off drained machines.  Run at each tick."""
    staying: dict[str, list[str]] = {}
    for worker in state.workers.draining:
        for record in state.actors.on_worker(worker):
            if record.request.owner in state.sessions and not draining.is_movable(state, record):
                staying.setdefault(record.request.owner, []).append(record.request.actor)
    for owner, actors in staying.items():
        state.send(owner, control.ToReplace(actors=actors))


# --- room -----------------------------------------------------------------------------------------


def try_place(state: State, waiter: Waiter) -> bool:
    """Place or refuse a request, or its whole gang; return False if it has to wait."""
    gang = gang_of(waiter.request)
    if not gang:
        return _try_place_one(state, waiter)
    if not state.gang_is_complete(waiter.request) or not _can_place(state):
        return False
    waiters = state.waiting.gang(gang)
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
        if is_there and not _try_place_one(state, each):  # it waits for its name, alone
            alone = msgspec.structs.replace(each.request, together=1)
            place = msgspec.structs.replace(each.place, request=alone)
            state.waiting.remove(each.request.actor)
            state.waiting.add(each.session, place, each.since, each.deadline, each.inside)
    return True


def try_on_loan(state: State, waiter: Waiter) -> bool:
    """Try to place a request with the CPUs of the actor that makes it."""
    with lending.to_own_requests(state, waiter.inside) as is_lent:
        return is_lent and try_place(state, waiter)


def settle_loans(state: State) -> None:
    """Lend the CPUs of the actors that wait since this event, first to their own requests, and take
    back those of actors that wait no longer."""
    while True:
        for actor in lending.take_repaid(state):
            lend_to_own_requests(state, actor)
        if not (changed := lending.take_changed(state)):
            return
        for actor in changed:
            record = state.actors.records.get(actor)
            if record is not None and lending.update(state, record):
                retry_waiting(state, record.worker)


def lend_to_own_requests(state: State, actor: str) -> None:
    """Place the waiting requests of an actor for which its own CPUs suffice."""
    tried: set[RequestKind] = set()
    for waiter in state.waiting.of_inside(actor):
        if waiter.kind not in tried and not state.waiting.is_set_aside(waiter.request.actor):
            tried.add(waiter.kind)
            _try_place_waiter(state, waiter, on_loan=True)


def _can_place(state: State) -> bool:
    return bool(state.workers.records) and not state.is_closing


def _try_place_one(state: State, waiter: Waiter) -> bool:
    request, ledger = waiter.request, state.workers.ledger
    if state.name_holder(request):
        ending = state.actors.ending(request.name)
        if ending and state.sessions[waiter.session].hello.actor != ending:  # else a deadlock
            state.waiting.set_aside(waiter)
            return False
        refuse_name(state, waiter)
        return True
    if not _can_place(state):
        return False
    among = state.workers_for(request)
    if placement := ledger.place(request.resources, request.python, among, request.packs):
        record = ActorRecord(request, placement.worker, list(placement.gpu_ids))
        left_s = max(0.0, min(waiter.place.patience_s, waiter.deadline - state.now))
        place = waiter.place
        if left_s < place.patience_s and not place.waits_without_limit:
            # It has this much if it is placed again.
            place = msgspec.structs.replace(place, patience_s=left_s)
        record.requester = Requester(waiter.session, place)
        apply_event(state, LifeEvent.PLACED, record)
        return True
    if waiter.place.waits_without_limit:  # a machine that is large enough may join
        return False
    if refusal := shortage.why_never(request, 1, state):
        refuse(state, waiter, *refusal)
        return True
    return False


def refuse(state: State, waiter: Waiter, error: str, why: str) -> None:
    """Refuse a request that still waits; `error` names a class of errors.py."""
    if state.waiting.get(waiter.request.actor) is waiter:
        refusal = control.NotPlaced(ticket=waiter.place.ticket, error=error, why=why)
        record = ActorRecord(waiter.request, requester=Requester(waiter.session, waiter.place))
        apply_event(state, LifeEvent.REFUSED, record, refusal)


def refuse_name(state: State, waiter: Waiter) -> None:
    refuse(state, waiter, "NameTaken", name_taken(waiter.request.name, "on this cluster"))


def retry_waiting(state: State, worker: str | None = None) -> None:
    """Place or refuse the waiting requests for which that is possible now.

    `worker`: only this one has new room.
    """
    ledger = state.workers.ledger
    if _try_place_reserved(state):
        worker = None
    turns = state.waiting.turns(
        lambda asked, python: worker is None or ledger.has_room(worker, asked, python)
    )
    for waiter in turns:
        _try_place_waiter(state, waiter)
    if _try_place_reserved(state):  # its request was placed elsewhere
        retry_waiting(state)


def _try_place_reserved(state: State) -> bool:
    """Place the request that has a reservation if its room is free; return whether the reservation
    was released."""
    is_released, waiter = reservation.release_if_ready(state)
    if waiter is not None:
        _try_place_waiter(state, waiter)
    return is_released


def _try_place_waiter(state: State, waiter: Waiter, on_loan: bool = False) -> None:
    """Try to place a waiting request, and tell its clients that it no longer waits."""
    gang = gang_of(waiter.request)
    waiters = state.waiting.gang(gang) if gang else [waiter]
    if try_on_loan(state, waiter) if on_loan else try_place(state, waiter):
        for each in waiters:
            state.send(each.session, control.Queued(ticket=each.place.ticket, why=""))


def _is_expected(state: State, request: control.Request) -> bool:
    """Return whether the next life of an actor waits, beyond its patience, for a lost machine that
    is expected back: perhaps its own, which had room for it."""
    return request.life > 0 and state.workers.expects(
        request.resources, request.python, state.workers_for(request)
    )


def review_waiting(state: State) -> None:
    """Refuse overdue requests, and reserve room for one that others overtake.  Run at each tick.

    If a client has become silent, tell those who wait: perhaps for what its actors hold.
    """
    if state.waiting:
        ask_for_spare_actors(state)
    for actor in state.waiting.makers():
        lend_to_own_requests(state, actor)
    reasons: dict[tuple[object, ...], str] = {}  # equal requests have the same

    def why_waiting(waiter: Waiter) -> str:
        request = waiter.request
        name = request.name if state.waiting.is_set_aside(request.actor) else ""
        alike = waiter.kind, request.class_name, request.job, name
        if (why := reasons.get(alike)) is None:
            why = reasons[alike] = shortage.why_it_waits(request, state)
        return why

    before, state.unheard = state.unheard, state.leases.unheard(UNHEARD_S, state.now)
    if state.waiting and any(each in state.sessions for each in state.unheard - before):
        for waiter in state.waiting:
            why = why_waiting(waiter)
            state.send(
                waiter.session, control.Queued(ticket=waiter.place.ticket, why=why, again=True)
            )
    for waiter in state.waiting.overdue(state.now):
        if _is_expected(state, waiter.request):
            continue
        why = f"no room for {waiter.place.patience_s:g} s: {why_waiting(waiter)}"
        refuse(state, waiter, "NoResources", why)
    if reservation.review(state) or _try_place_reserved(state):
        retry_waiting(state)
