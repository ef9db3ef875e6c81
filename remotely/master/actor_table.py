"""Which actor lives where: a record for each that has a place, and what finds it without a search.

A record comes with `add` and goes with `remove`, and the indexes are kept there and nowhere
else.  `request`, `worker` and `watchers` of a record that is there are what it is found by: a
request that takes the place of another names the same owner, and a watcher is added by `watch`.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import msgspec

from remotely.protocol import control
from remotely.protocol.index import Index

REMEMBERED_DEATHS = 10_000
REMEMBERED_FLIGHT_RECORDS = 16  # of those; each may be a MiB


@dataclass
class ActorRecord:
    """An actor, placed."""

    request: control.Request
    worker: str
    gpu_ids: list[int]
    location: control.Location | None = None
    since: float = 0  # wall clock, for people alone
    asker: tuple[str, control.Place] | None = None  # of a placement that is under way: by whom
    watchers: set[str] = field(default_factory=set)
    again: bool = False  # made from what its last life left there
    ends_within_s: float | None = None  # if it was asked to end; its worker may not have heard

    def settle(self, said: control.Location, since: float) -> control.Location:
        """It lives where its worker says, under the names with which it was placed."""
        request = self.request
        self.since = since
        self.location = msgspec.structs.replace(
            said, actor=request.actor, name=request.name, class_name=request.class_name
        )
        return self.location

    def lost(self, why: str = "") -> control.Obituary:
        """Return what is told of it when nobody saw its end; of a guest's, its process has."""
        is_guest = bool(self.request.classes)
        return control.Obituary(
            actor=self.request.actor, life=self.request.life, lost=not is_guest, why=why
        )

    def lost_before_next_life(self) -> control.Obituary:
        """Return what is told of a life that nobody saw end, and that a later one follows."""
        return msgspec.structs.replace(self.lost(), restarting=True)

    def closed(self) -> control.Obituary:
        """Return what is told of it when it was asked to end, and is not there any more."""
        return msgspec.structs.replace(self.lost(), lost=False, asked=True)


class ActorTable:
    """The actors that have a place, the names that they hold, and how others have ended."""

    def __init__(self) -> None:
        self.records: dict[str, ActorRecord] = {}
        self.by_owner: Index[str, str] = Index()  # actors, by their owner
        self.by_worker: Index[str, str] = Index()  # actors, by their worker
        self.by_gang: Index[str, str] = Index()  # actors, by the group that was placed with them
        self.by_watcher: Index[str, str] = Index()  # actors, by a session that is told of their end
        self.names: dict[str, str] = {}  # actors; of one between two lives too
        self.deaths: OrderedDict[str, control.Obituary] = OrderedDict()
        self._recorded: deque[str] = deque()  # actors among them with a flight record

    def add(self, record: ActorRecord) -> None:
        """An actor has its place, and its name."""
        request = record.request
        self.records[request.actor] = record
        self.deaths.pop(request.actor, None)
        self.by_owner.add(request.owner, request.actor)
        self.by_worker.add(record.worker, request.actor)
        if request.gang:
            self.by_gang.add(request.gang, request.actor)
        # Two scripts may each have a Counter-1; the name then means that of the first.
        if request.named or request.name not in self.names:
            self.names[request.name] = request.actor

    def remove(self, record: ActorRecord) -> None:
        """An actor has no place any more.  Whether it keeps its name is for the caller to say."""
        request = record.request
        del self.records[request.actor]
        self.by_owner.discard(request.owner, request.actor)
        self.by_worker.discard(record.worker, request.actor)
        if request.gang:
            self.by_gang.discard(request.gang, request.actor)
        for session in record.watchers:
            self.by_watcher.discard(session, request.actor)

    def free_name(self, request: control.Request) -> None:
        """An actor holds its name no more; another's stays."""
        if self.names.get(request.name) == request.actor:
            del self.names[request.name]

    def keep_name(self, request: control.Request) -> None:
        """An actor between two lives holds its name."""
        self.names.setdefault(request.name, request.actor)

    def ending(self, name: str) -> str:
        """Return the actor that has a name and was asked to end; empty if there is none."""
        record = self.records.get(self.names.get(name, ""))
        return "" if record is None or record.ends_within_s is None else record.request.actor

    def remember(self, obituary: control.Obituary) -> None:
        """Keep how an actor has ended, for those who ask late."""
        self.deaths[obituary.actor] = obituary
        if obituary.flight_record:
            self._recorded.append(obituary.actor)
            if len(self._recorded) > REMEMBERED_FLIGHT_RECORDS:
                self._drop_record(self._recorded.popleft())
        while len(self.deaths) > REMEMBERED_DEATHS:
            self.deaths.popitem(last=False)

    def _drop_record(self, actor: str) -> None:
        if (obituary := self.deaths.get(actor)) is not None and actor not in self._recorded:
            self.deaths[actor] = msgspec.structs.replace(obituary, flight_record=b"")

    def is_on(self, actor: str, worker: str) -> bool:
        """Tell whether this worker is the one that speaks for an actor."""
        record = self.records.get(actor)
        return record is not None and record.worker == worker

    def on_worker(self, worker: str) -> list[ActorRecord]:
        """Return those that a worker houses."""
        return [self.records[actor] for actor in self.by_worker.of(worker)]

    def watch(self, who: str, record: ActorRecord) -> None:
        """Have a session be told of an actor's end."""
        record.watchers.add(who)
        self.by_watcher.add(who, record.request.actor)

    def unwatch(self, who: str) -> None:
        """A session has ended."""
        for actor in self.by_watcher.pop(who):
            self.records[actor].watchers.discard(who)
