"""What a worker brings along when it says who it is, to the master it knew or to a new one."""

from typing import NamedTuple

from remotely.master.admission import Admission
from remotely.master.state import State
from remotely.protocol import control


class Brought(NamedTuple):
    """What a worker has when it says who it is: an actor, or one about to be born."""

    request: control.Request
    gpu_ids: list[int]
    seal: bytes  # of its placement
    status: control.ActorStatus | None = None  # of one that is born
    again: bool = False

    def is_genuine(self, worker: str, admission: Admission) -> bool:
        """Tell whether it was placed there, by this master or the one before, and may still be."""
        return admission.is_listed(self.request.key) and admission.seals.is_ours(
            worker, self.request, self.gpu_ids, self.seal
        )


def brought_by(register: control.Register) -> dict[str, Brought]:
    """Return what a worker has, by actor: of two lives the one to come."""
    born = {s.request.actor: Brought(s.request, s.gpu_ids, s.seal, s) for s in register.actors}
    births = {
        b.request.actor: Brought(b.request, b.gpu_ids, b.seal, None, b.again)
        for b in register.births
    }
    return {**born, **births}


def is_wanted(brought: Brought, worker: str, is_new: bool, state: State) -> bool:
    """Tell whether an actor that was not known to be on a worker is to go on there.

    It is, if its worker is new to this master and the actor was not given up, or if nobody was
    told of another of the same life, which may be waiting for room or about to be born.
    """
    actor, life = brought.request.actor, brought.request.life
    if (waiter := state.waiting.get(actor)) is not None:
        return waiter.request.life == life
    record = state.roster.actors.get(actor)
    if record is None:
        return is_new and actor not in state.roster.deaths
    if record.worker == worker:
        return False
    if record.request.life == life:
        return brought.status is not None and record.location is None
    return is_new and life > record.request.life
