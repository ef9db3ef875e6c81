"""Processes that dial in to serve an object: what the master does for them beside for workers.

Such a process is a worker that names no Python and has no resources (`Register`), with one actor.
Two questions are its own: which worker relays its callers (transport/relay.py), and whether its
object may be an actor here.

Nobody has placed the actor, so it bears no seal.  It is believed in because its id is that of its
worker, a digest that only this process can tell how to make: no other worker can claim it, and this
one can claim no actor but it.  It has no owner and takes no cores, and ends with its process or
with the connection of that, whichever the master sees end first.
"""

import msgspec

from remotely.errors import name_taken
from remotely.master.admission import Seals
from remotely.master.state import State
from remotely.protocol import control
from remotely.protocol.resources import Resources

STOPPED = "the cluster was stopped"
OVER = "the master has given it up, as its connection had ended"
AGAIN = "the process that served it has dialled in again"
CUT = "the connection of the process that served it has ended"
LEARNING = "the master was started again, and an actor of this name may come back: dial in later"
NO_RELAY = "no worker of this cluster takes calls from other machines, or is there by now"


def is_guest(register: control.Register) -> bool:
    return not register.python


def vouch(register: control.Register, key: bytes, seals: Seals) -> control.Register:
    """Return what a worker has said, its own actor as it may be, and sealed."""
    return msgspec.structs.replace(
        register,
        actors=[
            _vouched(status, register.worker, key, seals)
            if status.request.actor == register.worker
            else status
            for status in register.actors
        ],
    )


def _vouched(
    status: control.ActorStatus, worker: str, key: bytes, seals: Seals
) -> control.ActorStatus:
    request = msgspec.structs.replace(
        status.request,
        owner="",
        job="",
        maker="",
        life=0,
        max_restarts=0,
        together=1,
        env={},
        modules=[],
        resources=Resources(),
        key=key,
        classes=status.request.classes or [status.request.class_name],
    )
    seal = seals.seal(worker, request, [])
    return msgspec.structs.replace(status, request=request, gpu_ids=[], seal=seal)


def relay_for_guest(state: State) -> control.Relay | control.Refused:
    """Return which worker is to relay: near the master if possible, else where the fewest are."""
    if state.is_closing:
        return control.Refused(error="NotConnected", why=STOPPED)
    found = [
        (not record.is_near, len(state.actors.by_worker.of(name)), name)
        for name, record in state.workers.records.items()
        if record.register.relay and name not in state.workers.ledger.away
    ]
    if not found:
        return control.Refused(error="NoResources", why=NO_RELAY)
    is_far, _, name = min(found)
    register = state.workers.records[name].register
    return control.Relay(address=register.relay, token=register.relay_token, is_near=not is_far)


def why_not(register: control.Register, state: State) -> control.Refused | None:
    """Return what a guest is told whose object cannot be an actor here."""
    if not register.actors or register.worker in state.workers:
        return None
    request = register.actors[0].request
    if state.is_closing:
        return control.Refused(error="NotConnected", why=STOPPED)
    if request.actor in state.actors.deaths:
        return control.Refused(error="WorkerLost", why=OVER)
    holder = state.holder_of(request.name)
    if request.named and holder is not None and holder.named:
        return control.Refused(error="NameTaken", why=name_taken(request.name, "on this cluster"))
    if request.named and state.is_learning and not register.returns:
        return control.Refused(error="MasterLost", why=LEARNING)
    return None
