"""Guests: processes that connect to the cluster to serve one object as an actor.

A guest registers as a worker that names no Python and has no resources (`Register`), with one
actor.  The master does two more things for it: it chooses the worker that relays the guest's
callers (transport/relay.py), and decides whether the object may become an actor.

The master has not placed the actor, so it has no seal at first.  The master trusts it because its
id is that of the guest, a digest that only this process can derive: no other worker can claim it,
and the guest can claim no other actor.  Once admitted, it gets a seal.  It shows that to a
restarted master, which so gives it back its name before others that may hold it have returned.  The
actor has no owner and takes no cores.  It ends with its process or with the connection of that,
whichever the master sees end first.
"""

import msgspec

from remotely.errors import name_taken
from remotely.master.admission import Seals
from remotely.master.state import State
from remotely.protocol import control
from remotely.protocol.resources import Resources

STOPPED = "the cluster was stopped"
OVER = "the master gave this actor up when its connection ended"
AGAIN = "the process that served it has connected again"
CUT = "the connection of the process that served it has ended"
RECOVERING = "the master was restarted, and an actor of this name may come back: retry later"
NO_RELAY = "no worker of this cluster accepts calls from other machines, or none has joined yet"


def is_guest(register: control.Register) -> bool:
    return not register.python


def vet(register: control.Register, key: bytes, seals: Seals) -> control.Register:
    """Return a registration whose guest actor has only the fields that it may set, and its seal if
    that is valid.  One that is not a guest's is returned as it is."""
    if not is_guest(register):
        return register
    return msgspec.structs.replace(
        register,
        actors=[
            _vetted(status, register.worker, key, seals)
            if status.request.actor == register.worker
            else status
            for status in register.actors
        ],
    )


def _vetted(
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
    seal = status.seal if seals.is_ours(worker, request, [], status.seal) else b""
    return msgspec.structs.replace(status, request=request, gpu_ids=[], seal=seal)


def choose_relay(state: State) -> control.Relay | control.Refused:
    """Choose the worker that relays: one near the master if possible, with the fewest actors."""
    if state.is_closing:
        return control.Refused(error="NotConnected", why=STOPPED)
    found = [
        (not record.is_near, len(state.actors.by_worker.of(name)), name)
        for name, record in state.workers.records.items()
        if record.register.relay and not state.workers.ledger.is_away(name)
    ]
    if not found:
        return control.Refused(error="NoResources", why=NO_RELAY)
    is_far, _, name = min(found)
    register = state.workers.records[name].register
    return control.Relay(address=register.relay, token=register.relay_token, is_near=not is_far)


def refusal_of(register: control.Register, state: State) -> control.Refused | None:
    """Return the refusal of a guest whose object cannot become an actor here; else None."""
    own = [status for status in register.actors if status.request.actor == register.worker]
    if not own or register.worker in state.workers:
        return None
    request = own[0].request
    if state.is_closing:
        return control.Refused(error="NotConnected", why=STOPPED)
    if request.actor in state.actors.deaths:
        return control.Refused(error="WorkerLost", why=OVER)
    if state.name_holder(request):
        return control.Refused(error="NameTaken", why=name_taken(request.name, "on this cluster"))
    if request.named and state.is_recovering and not own[0].seal:
        return control.Refused(error="MasterLost", why=RECOVERING)
    return None
