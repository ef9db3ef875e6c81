"""What a master knows, as one value: registry.py and lifecycle.py change it, others read it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from remotely.master.actor_table import ActorTable
from remotely.master.restarts import Restarts
from remotely.master.sessions import Sessions
from remotely.master.waiting import WaitingList, gang_of
from remotely.master.worker_table import WorkerTable
from remotely.protocol import control
from remotely.protocol.lease import Leases


class Kept(NamedTuple):
    """For whom room is kept (kept_room.py)."""

    actor: str  # of a group the first
    class_name: str
    gained_at: float  # when something has last come of it
    lacks: tuple[int, ...]  # what is missing of that room, as `Ledger.lacks` has it


@dataclass
class State:
    leases: Leases
    learns_until: float  # a new master hears of what lives as the workers come back
    is_embedded: bool  # a script's own: what it has is all it will ever have
    counts_cpus: bool = True  # of actors that name none
    sessions: Sessions = field(default_factory=Sessions)
    workers: WorkerTable = field(default_factory=WorkerTable)
    actors: ActorTable = field(default_factory=ActorTable)
    waiting: WaitingList = field(default_factory=WaitingList)
    restarts: Restarts = field(default_factory=Restarts)
    kept: Kept | None = None
    is_closing: bool = False
    now: float = 0.0  # of the last event

    @property
    def is_learning(self) -> bool:
        """Workers may come back that were there before this master."""
        return self.now < self.learns_until

    @property
    def uncounted(self) -> int:
        """How many actors name no CPUs, and hold none for that; they would hold one each."""
        records = () if self.counts_cpus else self.actors.records.values()
        return sum(not record.request.names_cpus for record in records)

    def has_asked_whole(self, request: control.Request) -> bool:
        """Tell whether all of a request's group have asked: with those that an earlier master has
        placed."""
        gang = gang_of(request)
        there = self.waiting.gang_size(gang) + self.actors.by_gang.count(gang)
        return not gang or there >= request.together

    def holder_of(self, name: str) -> control.Request | None:
        """Return who has a name, alive or between two lives."""
        actor = self.actors.names.get(name, "")
        if record := self.actors.records.get(actor):
            return record.request
        due = self.restarts.due(actor)
        return due and due.request
