"""Processes that dial in to serve an object: where they may, and how the object becomes an actor.

The worker at which a process has dialled in speaks for its actor, as it does for those that it
has started.  The actor has no owner and takes no cores; it ends with its process.

The process hears from here who may call the object, along a connection of its own.  A worker's
word would not do: whoever holds a worker's key could host an object and admit a key of its own, and
what callers send runs as code.

The actor's id is a digest that only the process itself can tell the master how to make, and the
object is believed to be where the master has sent the process.  So no worker can pass off the actor
of another, or one that it does not house, as an object that has dialled in there.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from remotely.errors import name_taken
from remotely.master.actors import Event, die, happen, spawned
from remotely.master.state import ActorRecord, State
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.resources import Resources

UNKNOWN = "the master was started again, and has not heard from the process that serves it"
AGAIN = "the process that served it lost its connection, and has dialled in again"
LEARNING = "the master was started again, and an actor of this name may come back: dial in later"


class Dialling(NamedTuple):
    """A process that serves an object: the key with which it came, and the ids of its actor and of
    the one before.  `worker`: where it may dial in, or has; empty if nowhere."""

    key: bytes
    actor: str
    before: str
    worker: str


class Guests:
    def __init__(self, state: State) -> None:
        self._state = state
        self._tell = state.tell
        self._dialling: dict[str, Dialling] = {}  # by the connection, as long as that is there
        self._connections: dict[str, str] = {}  # the reverse, by actor

    def __contains__(self, who: object) -> bool:
        return who in self._dialling

    def __iter__(self) -> Iterator[str]:
        return iter(self._dialling)

    def greet(self, who: str, key: bytes, ask: control.AskHost) -> None:
        """A process says what it serves: tell it where it may dial in."""
        self.leave(who)  # if it has served something else
        actor, before = (bound_id("guest", key, nonce) for nonce in (ask.nonce, ask.before))
        worker = ask.worker
        if not worker:  # else its connection here was lost
            host = self._host()
            worker = host.worker if host else ""
            why = "no worker of this cluster takes calls from other machines, or is there by now"
            self._tell(who, host or control.Refused(error="NoResources", why=why))
        self._dialling[who] = Dialling(key, actor, before, worker)
        self._connections[actor] = who

    def leave(self, who: str) -> bool:
        """A connection has ended, though perhaps not the actor; false if it is not a guest's."""
        if (dialling := self._dialling.pop(who, None)) is None:
            return False
        if self._connections.get(dialling.actor) == who:
            del self._connections[dialling.actor]
        return True

    def _host(self) -> control.Host | None:
        """Return where to dial in: near the master if that can be, else where the fewest are."""
        state = self._state
        away = state.workers.ledger.away
        found = [
            (not record.is_near, len(state.actors.by_worker.of(name)), name)
            for name, record in state.workers.records.items()
            if record.register.guests and name not in away
        ]
        if not found:
            return None
        is_far, _, name = min(found)
        register = state.workers.records[name].register
        return control.Host(
            worker=name,
            address=register.guests,
            public_key=register.guests_key,
            is_near=not is_far,
        )

    def hear(self, worker: str, arrived: control.Arrived) -> None:
        """A process has dialled in at a worker."""
        actor, location = arrived.request.actor, arrived.location
        if (record := self._state.actors.records.get(actor)) is not None:
            if record.worker == worker and record.request.classes:  # said again
                self._confirm(worker, record.request)
            return
        dialling = self._dialling.get(self._connections.get(actor, ""))
        is_over = actor in self._state.actors.deaths
        if dialling is None or dialling.worker != worker or is_over:
            self._refuse(worker, actor, "MasterLost", UNKNOWN)
            return
        self._end_before(dialling)
        if refusal := self._why_not(arrived.request):
            self._refuse(worker, actor, *refusal)
            return
        request = msgspec.structs.replace(
            arrived.request,
            owner="",
            job="",
            maker="",
            life=0,
            max_restarts=0,
            together=1,
            env={},
            modules=[],
            resources=Resources(0.0, 0.0),  # as it will be read again, or the seal is not ours
            key=dialling.key,
            classes=arrived.request.classes or [arrived.request.class_name],
        )
        happen(self._state, Event.BROUGHT, ActorRecord(request, worker))
        spawned(self._state, worker, location, arrived.since)
        self._confirm(worker, request)

    def _end_before(self, dialling: Dialling) -> None:
        """End the actor that the object was before; its worker may not have heard, or be gone."""
        before = dialling.before
        if (record := self._state.actors.records.get(before)) is not None:
            self._tell(record.worker, control.End(actor=before, grace_s=0.0, kill=True))
            die(self._state, control.Obituary(actor=before, life=0, why=AGAIN))

    def _refuse(self, worker: str, actor: str, error: str, why: str) -> None:
        self._tell(worker, control.NotHosted(actor=actor, error=error, why=why))

    def _confirm(self, worker: str, request: control.Request) -> None:
        seal = self._state.admission.seals.seal(worker, request, [])
        hosted = control.Hosted(actor=request.actor, request=request, seal=seal)
        self._tell(worker, hosted)

    def _why_not(self, request: control.Request) -> tuple[str, str] | None:
        state = self._state
        if state.is_closing:
            return "MasterLost", "the cluster is being stopped"
        if not request.named:
            return None
        holder = state.holder_of(request.name)
        if holder is not None and holder.named:
            return "NameTaken", name_taken(request.name, "on this cluster")
        return ("MasterLost", LEARNING) if state.is_learning else None
