"""On which workers a request may be placed, if it names a machine or an actor to be near.  Pure."""

from remotely.master.state import State
from remotely.protocol import control
from remotely.protocol.resources import listed


def workers_for(request: control.Request, state: State) -> set[str] | None:
    """Return the workers on which a request may be placed, away or not; None if on any."""
    if not request.machine and not request.near:
        return None
    found = set(state.workers.on_machine(request.machine)) if request.machine else None
    if request.near:
        record = state.actors.records.get(request.near)
        beside = state.workers.beside(record.worker) if record else []
        found = set(beside) if found is None else found.intersection(beside)
    return found


def why_nowhere(request: control.Request, state: State) -> str | None:
    """Return why there is no such place, and will not be; None if there is, or may come back."""
    if state.is_learning:
        return None
    if request.machine and not state.workers.on_machine(request.machine):
        names = state.workers.machines()
        be = "is" if len(names) == 1 else "are"
        return (
            f"no machine of this cluster is named {request.machine!r}: there {be} {listed(names)}"
        )
    if not request.near or request.near in state.restarts:
        return None
    if (record := state.actors.records.get(request.near)) is None:
        return "the actor that it is to be near has ended, or has no place yet"
    if record.worker in state.workers and not workers_for(request, state):
        return f"the actor that it is to be near is on another machine than {request.machine!r}"
    return None
