"""Processes that dial in to serve an object: where they may, and how the object becomes an actor.

The worker at which a process has dialled in speaks for its actor, as it does for those that it
has started.  The actor has no owner and takes no cores; it ends with its process.
"""

from collections.abc import Callable

import msgspec

from remotely.errors import name_taken
from remotely.master.actor_table import ActorRecord
from remotely.master.admission import Admission
from remotely.master.lifecycle import ActorLifecycle
from remotely.master.state import State
from remotely.protocol import control
from remotely.protocol.resources import Resources

AGAIN = "the process that served it lost its connection, and has dialled in again"
LEARNING = "the master was started again, and an actor of this name may come back: dial in later"


class Guests:
    def __init__(
        self,
        state: State,
        tell: Callable[[str, msgspec.Struct], bool],
        admission: Admission,
        lifecycle: ActorLifecycle,
    ) -> None:
        self._state = state
        self._tell = tell
        self._admission = admission
        self._lifecycle = lifecycle

    def host_for(self, master_host: str) -> control.Host | None:
        """Return where to dial in: near the master if that can be, else where the fewest are."""
        state = self._state
        away = state.workers.ledger.away
        found = [
            (register.host != master_host, len(state.actors.by_worker.of(name)), name)
            for name, record in state.workers.records.items()
            if (register := record.register).guests and name not in away
        ]
        if not found:
            return None
        is_far, _, name = min(found)
        register = state.workers.records[name].register
        return control.Host(
            address=register.guests, public_key=register.guests_key, is_near=not is_far
        )

    def hear(self, worker: str, arrived: control.Arrived) -> None:
        """A process has dialled in at a worker."""
        actor, location = arrived.request.actor, arrived.location
        if (record := self._state.actors.records.get(actor)) is not None:
            if record.worker == worker and record.request.classes:  # said again
                self._confirm(worker, record.request)
            return
        self._end_before(arrived)
        if refusal := self._why_not(arrived):
            error, why = refusal
            self._tell(worker, control.NotHosted(actor=actor, error=error, why=why))
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
            key=arrived.key,
            classes=arrived.request.classes or [arrived.request.class_name],
        )
        self._lifecycle.placer.enter(ActorRecord(request, worker, []), "")
        self._lifecycle.spawned(worker, location, arrived.since)
        self._confirm(worker, request)

    def _end_before(self, arrived: control.Arrived) -> None:
        """End the actor that the object was before; its worker may not have heard, or be gone."""
        before = arrived.before
        record = self._state.actors.records.get(before)
        if record is not None and record.request.classes and record.request.key == arrived.key:
            self._tell(record.worker, control.End(actor=before, grace_s=0.0, kill=True))
            self._lifecycle.hear_death(control.Obituary(actor=before, life=0, why=AGAIN))

    def _confirm(self, worker: str, request: control.Request) -> None:
        seal = self._admission.seals.seal(worker, request, [])
        hosted = control.Hosted(actor=request.actor, request=request, seal=seal)
        self._tell(worker, hosted)

    def _why_not(self, arrived: control.Arrived) -> tuple[str, str] | None:
        state, request = self._state, arrived.request
        if self._admission.role_of(arrived.key) != "worker":
            return "NotAllowed", "this key was revoked; ask who runs the cluster for another"
        if state.is_closing:
            return "MasterLost", "the cluster is being stopped"
        if not request.named:
            return None
        holder = state.holder_of(request.name)
        if holder is not None and holder.named:
            return "NameTaken", name_taken(request.name, "on this cluster")
        return ("MasterLost", LEARNING) if state.is_learning else None
