"""The master's state, and the instructions that it returns for an event.

    peer         considered alive while                       ends together with it
    worker       it has a route, or beat within its lease     its actors (WorkerLost)
    client       the same; on this host, its process lives    the actors that it owns
    actor        its worker reports it                        the actors that it owns, as a client

A record names its owner; an index maps the owner back to its records.  Only this file updates the
indexes, when it adds or removes a record, so the cost of an event depends on what it touches and
not on the size of the cluster.  core.py and actors.py change the state; ledger.py, waiting.py and
arrivals.py hold parts of it.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from remotely.master.admission import Admission, Delegates
from remotely.master.arrivals import Arrivals
from remotely.master.history import History, Kind
from remotely.master.ledger import Ledger, WhyClosed
from remotely.master.queries import LogQueries, StatusQueries, Timelines
from remotely.master.wait_graph import WaitGraph
from remotely.master.waiting import WaitingList, gang_of
from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.protocol.lease import EXPECTED_S, Leases
from remotely.protocol.resources import Resources
from remotely.protocol.restart_limit import RestartLimit

REMEMBERED_DEATHS = 10_000
REMEMBERED_FLIGHT_RECORDS = 16  # of these deaths; each record may take 1 MiB


# --- instructions ---------------------------------------------------------------------------------


class Send(NamedTuple):
    """Send a message to a peer.  If there is no route to it, the shell calls `Core.lose_route`."""

    peer: str
    message: msgspec.Struct


class Forget(NamedTuple):
    """Forget the connection of a peer that has ended."""

    peer: str


class RouteProbe(NamedTuple):
    """Test the route to a worker, then pass this request to `Core.locate`."""

    worker: str
    client: str
    request: control.Locate


class Log(NamedTuple):
    """Write a line to the master's log."""

    line: str


Instruction = Send | Forget | RouteProbe | Log


# --- actors ---------------------------------------------------------------------------------------


class Requester(NamedTuple):
    """The session that requested an actor, and its request."""

    session: str
    place: control.Place


@dataclass(slots=True)
class ActorRecord:
    """An actor that is placed, or is being placed."""

    request: control.Request
    worker: str = ""
    gpu_ids: list[int] = field(default_factory=list)
    location: control.Location | None = None  # once it has started
    since: float = 0  # wall clock, for display
    requester: Requester | None = None  # until it has started
    watchers: set[str] = field(default_factory=set)  # sessions to notify when it ends
    again: bool = False  # started from the restart file of its previous life
    ends_within_s: float | None = None  # if asked to end; its worker may not know yet
    lender: str = ""  # the actor on whose CPUs it was placed (lending.py)
    lends: bool = False  # it waits, so its CPUs are free in the ledger
    unstarted_at: float | None = None  # when its worker first failed to start its next life
    has_begun: bool = False  # its next life: its constructor runs, and has no time limit
    is_between_tries: bool = False  # its worker is not starting it now
    is_moving: bool = False  # it ends soon, and its next life is placed elsewhere (draining.py)
    moves: int = 0  # how often a move of this life has begun
    move_until: float = 0.0  # when it is withdrawn; after that, when the next may begin

    def lost(
        self, why: str = "", restarting: bool = False, moved: bool = False
    ) -> control.Obituary:
        """Return the obituary of an actor that is lost, or of a guest whose process ended.

        `restarting`: another life follows.  `moved`: its machine was drained.
        """
        is_guest = bool(self.request.classes)
        return control.Obituary(
            actor=self.request.actor,
            life=self.request.life,
            lost=not is_guest,
            why=why,
            restarting=restarting,
            moved=moved,
        )

    def closed(self) -> control.Obituary:
        """Return the obituary of an actor that was asked to end and is gone."""
        return control.Obituary(actor=self.request.actor, life=self.request.life, asked=True)


class ActorTable:
    """Placed actors, their names, and the obituaries of actors that have ended."""

    def __init__(self) -> None:
        self.records: dict[str, ActorRecord] = {}
        self.by_owner: Index[str, str] = Index()
        self.by_worker: Index[str, str] = Index()
        self.starting: Index[str, str] = Index()  # by worker, those whose process may fail to start
        self.by_gang: Index[str, str] = Index()
        self.by_watcher: Index[str, str] = Index()
        # Clients that hold an actor beside its owner, and the reverse; kept between two lives.
        self.holders: Index[str, str] = Index()
        self.held_by: Index[str, str] = Index()
        self.by_lender: Index[str, str] = Index()
        self.spare_of: Index[str, str] = Index()  # the actors of an owner that may be spare
        self.lender = ""  # of the actors that are placed now
        self.repaid: dict[str, None] = {}  # lenders whose borrowers have ended
        self.changed: dict[str, None] = {}  # new ones, whose clients may have waited before
        self.names: dict[str, str] = {}  # name -> actor, also while that is restarting
        self.deaths: OrderedDict[str, control.Obituary] = OrderedDict()
        self._recorded: deque[str] = deque()  # actors in `deaths` with a flight record

    def add(self, record: ActorRecord) -> None:
        """Add a placed actor, and its name."""
        request = record.request
        self.records[request.actor] = record
        self.changed[request.actor] = None
        self.deaths.pop(request.actor, None)
        self.by_owner.add(request.owner, request.actor)
        self.by_worker.add(record.worker, request.actor)
        self.set_location(record, record.location)
        if self.lender and request.resources.cpus:
            record.lender = self.lender
        if record.lender:
            self.by_lender.add(record.lender, request.actor)
        if request.gang:
            self.by_gang.add(request.gang, request.actor)
        if request.is_spare:
            self.spare_of.add(request.owner, request.actor)
        # Two scripts may each have a Counter-1; the name then refers to the first.
        if request.named or request.name not in self.names:
            self.names[request.name] = request.actor

    def remove(self, record: ActorRecord) -> None:
        """Remove an actor, but not its name."""
        request = record.request
        del self.records[request.actor]
        self.by_owner.discard(request.owner, request.actor)
        self.by_worker.discard(record.worker, request.actor)
        self.starting.discard(record.worker, request.actor)
        self.by_gang.discard(request.gang, request.actor)
        self.spare_of.discard(request.owner, request.actor)
        if record.lender:
            self.by_lender.discard(record.lender, request.actor)
            self.repaid[record.lender] = None
        for session in record.watchers:
            self.by_watcher.discard(session, request.actor)

    def set_location(self, record: ActorRecord, location: control.Location | None) -> None:
        """Set where an actor has started; None if its next life has yet to start."""
        record.location, record.has_begun = location, False
        if location is None:
            self.starting.add(record.worker, record.request.actor)
        else:
            self.starting.discard(record.worker, record.request.actor)

    def begin(self, record: ActorRecord) -> None:
        """Note that the process of a next life has started, and runs its constructor."""
        record.has_begun = True
        self.starting.discard(record.worker, record.request.actor)

    def is_starting(self, actor: str, worker: str) -> bool:
        """Return whether an actor is placed on this worker, which may fail to start its process."""
        record = self.records.get(actor)
        if record is None or record.worker != worker:
            return False
        return record.location is None and not record.has_begun

    def free_name(self, request: control.Request) -> None:
        """Free a name, if this actor holds it."""
        if self.names.get(request.name) == request.actor:
            del self.names[request.name]

    def ending(self, name: str) -> str:
        """Return the actor with this name if it was asked to end; else an empty string."""
        record = self.records.get(self.names.get(name, ""))
        return "" if record is None or record.ends_within_s is None else record.request.actor

    def remember(self, obituary: control.Obituary) -> None:
        """Keep an obituary for clients that ask later."""
        self.deaths[obituary.actor] = obituary
        if obituary.flight_record:
            self._recorded.append(obituary.actor)
            if len(self._recorded) > REMEMBERED_FLIGHT_RECORDS:
                self._drop_flight_record(self._recorded.popleft())
        while len(self.deaths) > REMEMBERED_DEATHS:
            self.deaths.popitem(last=False)

    def _drop_flight_record(self, actor: str) -> None:
        if (obituary := self.deaths.get(actor)) is not None and actor not in self._recorded:
            self.deaths[actor] = msgspec.structs.replace(obituary, flight_record=b"")

    def is_on(self, actor: str, worker: str) -> bool:
        """Return whether an actor is placed on this worker."""
        record = self.records.get(actor)
        return record is not None and record.worker == worker

    def on_worker(self, worker: str) -> list[ActorRecord]:
        return [self.records[actor] for actor in self.by_worker.of(worker)]

    def hold(self, session: str, actor: str) -> None:
        """Add a holder."""
        self.holders.add(actor, session)
        self.held_by.add(session, actor)

    def let_go(self, session: str, actor: str) -> None:
        """Remove a holder, if it is one."""
        self.holders.discard(actor, session)
        self.held_by.discard(session, actor)

    def pass_on(self, record: ActorRecord) -> bool:
        """Make the client that has held an actor longest its owner; return False if there is none.

        It does not have the class and the arguments, so the actor is no longer restarted.
        """
        request = record.request
        if (owner := self.holders.first(request.actor)) is None:
            return False
        self.let_go(owner, request.actor)
        for index in (self.by_owner, self.spare_of):
            index.discard(request.owner, request.actor)
        record.request = msgspec.structs.replace(
            request, owner=owner, maker="", max_restarts=0, is_spare=False
        )
        self.by_owner.add(owner, request.actor)
        return True

    def watch(self, session: str, record: ActorRecord) -> None:
        """Notify a session when this actor ends."""
        record.watchers.add(session)
        self.by_watcher.add(session, record.request.actor)

    def unwatch(self, session: str) -> None:
        """Remove a session that has ended from all watchers."""
        for actor in self.by_watcher.pop(session):
            self.records[actor].watchers.discard(session)


class PendingRestart(NamedTuple):
    """An actor between two lives; its maker is expected to request the next one."""

    request: control.Request  # of the life that ended
    obituary: control.Obituary


class Restarts:
    """The number of recent restarts of each actor, and the restarts that are pending.

    A restarted master counts from zero.
    """

    def __init__(self) -> None:
        self.begun: dict[str, RestartLimit] = {}  # by actor
        self.pending: dict[str, PendingRestart] = {}
        self._of_maker: Index[str, str] = Index()  # actors in `pending`

    def allow(self, request: control.Request, now: float) -> bool:
        """Count a restart; return False, and do not count it, if max_restarts is reached."""
        limit = self.begun.setdefault(request.actor, RestartLimit())
        return limit.allow(request.max_restarts, now)

    def add(self, request: control.Request, obituary: control.Obituary) -> None:
        """Record that the maker is expected to request the next life."""
        self.pending[request.actor] = PendingRestart(request, obituary)
        self._of_maker.add(request.maker, request.actor)

    def pending_of(self, maker: str) -> list[PendingRestart]:
        """Return the restarts that a client is expected to request."""
        return [self.pending[actor] for actor in self._of_maker.of(maker)]

    def pop(self, actor: str) -> PendingRestart | None:
        """Remove a pending restart: the next life has started, or is given up."""
        if (pending := self.pending.pop(actor, None)) is not None:
            self._of_maker.discard(pending.request.maker, actor)
        return pending


# --- clients --------------------------------------------------------------------------------------


@dataclass(slots=True)
class ClientSession:
    """A client, for as long as its lease lasts, over any number of connections."""

    hello: control.Hello
    key: bytes  # the listed key at its root: its own, or that behind the actor in which it runs
    job: str
    is_viewer: bool = False  # it makes no calls, so the master does not ask for their number
    modules: set[str] = field(default_factory=set)
    leaving: bool = False
    unanswered: dict[str, int] = field(default_factory=dict)  # calls by actor, as last reported
    metrics: Sequence[control.MetricFigures] = ()  # likewise

    def stamp(self, place: control.Place, counts_cpus: bool) -> control.Place:
        """Return a request with the fields that the master, not the client, fills in."""
        original, session = place.request, self.hello.session
        resources = original.resources
        if not (original.names_cpus or counts_cpus):
            resources = msgspec.structs.replace(resources, cpus=0.0)
        request = msgspec.structs.replace(
            original,
            owner=session if original.owner else "",
            maker=session if original.maker else "",
            job=self.job,
            key=self.key,
            resources=resources,
        )
        return msgspec.structs.replace(place, request=request)


class Sessions:
    """The connected clients: scripts, and actors that make calls."""

    def __init__(self) -> None:
        self._sessions: dict[str, ClientSession] = {}
        self.inside: Index[str, str] = Index()  # sessions by the actor in which they run
        self.using: Index[tuple[str, str], str] = Index()  # sessions by Python and module

    def __contains__(self, name: object) -> bool:
        return name in self._sessions

    def __getitem__(self, name: str) -> ClientSession:
        return self._sessions[name]

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(self._sessions.values())

    def get(self, name: str) -> ClientSession | None:
        return self._sessions.get(name)

    def add(self, session: ClientSession) -> None:
        hello = session.hello
        self._sessions[hello.session] = session
        if hello.actor:
            self.inside.add(hello.actor, hello.session)

    def remove(self, name: str) -> ClientSession | None:
        """Remove and return a session; None if there is none of this name."""
        if (session := self._sessions.pop(name, None)) is None:
            return None
        self.inside.discard(session.hello.actor, name)
        for module in session.modules:
            self.using.discard((session.hello.python, module), name)
        return session

    def use(self, name: str, modules: Iterable[str]) -> list[str]:
        """Record the modules of a client; return those that no client used before."""
        session = self._sessions[name]
        python = session.hello.python
        unused = [module for module in modules if (python, module) not in self.using]
        session.modules.update(modules)
        for module in modules:
            self.using.add((python, module), name)
        return unused

    def modules_of(self, python: str) -> list[str]:
        """Return the modules that the clients with this Python use."""
        return sorted(module for version, module in self.using if version == python)


# --- workers --------------------------------------------------------------------------------------


@dataclass(slots=True)
class WorkerRecord:
    """A worker, and the last figures that it reported of its actors and its machine."""

    register: control.Register
    is_near: bool = False  # on the master's machine
    start_heard_at: float = 0.0  # when a start there last had an outcome, or the only one began
    reports: dict[str, control.Figures] = field(default_factory=dict)
    use: control.MachineUse = field(default_factory=control.MachineUse)


@dataclass(slots=True)
class Sickness:
    """What is known of a worker on which starts fail (sickness.py)."""

    since: float
    why: str = ""  # the last one failed
    pause_s: float = 0.0  # the length of the current pause; zero if it was never benched
    until: float = 0.0  # nothing is placed there
    trial: str = ""  # the actor whose start decides
    given_up: set[str] = field(default_factory=set)  # actors whose processes may still start


class LostWorker(NamedTuple):
    """A lost worker that may come back."""

    machine: str
    address: str
    size: Resources
    until: float


class WorkerTable:
    """Workers by id, and the free resources of each.

    A lost worker stays in the ledger for EXPECTED_S, because its machine may be rebooting: a
    request that needs a machine of its size waits for it instead of being refused.
    """

    def __init__(self) -> None:
        self.records: dict[str, WorkerRecord] = {}
        self.ledger = Ledger()
        self.sick: dict[str, Sickness] = {}
        self.draining: dict[str, float] = {}  # until when
        self.undone: set[str] = set()  # not drained any more, and have not heard of it
        self.must_leave: set[str] = set()  # those drained that were sent SIGTERM
        self._lost: dict[str, LostWorker] = {}
        # By machine, by address, and by both; lost workers included.
        self._by_place: Index[str | tuple[str, str], str] = Index()
        self._by_host: Index[str, str] = Index()

    def __contains__(self, worker: object) -> bool:
        return worker in self.records

    def add(
        self, register: control.Register, is_near: bool = False, predecessors: Iterable[str] = ()
    ) -> None:
        """Add a new worker, or one that was lost.  It replaces its lost `predecessors`."""
        name = register.worker
        known = [before for before in (name, *predecessors) if before in self._lost]
        for before in known or self._guess_predecessor(register):
            self.forget_lost(before)
        self.records[name] = WorkerRecord(register, is_near)
        for place in _places(register):
            self._by_place.add(place, name)
        self._by_host.add(register.host, name)
        self.ledger.add_worker(name, register.resources, register.python, register.shares)

    def remove(self, name: str, now: float, may_return: bool) -> None:
        """Remove a worker.  `may_return`: keep it in the ledger, as lost."""
        register = self.records.pop(name).register
        self._by_host.discard(register.host, name)
        if self.sick.pop(name, None) is not None:
            self.ledger.heal(name)
        if self.draining.pop(name, None) is not None:
            self.ledger.reopen(name, WhyClosed.DRAINING)
        self.undone.discard(name)
        self.must_leave.discard(name)
        lost = LostWorker(register.machine, register.address, register.resources, now + EXPECTED_S)
        self._lost[name] = lost
        self.ledger.close(name, WhyClosed.AWAY)
        if not may_return:
            self.forget_lost(name)

    def forget_overdue(self, now: float) -> bool:
        """Forget lost workers that are overdue; return whether there were any."""
        overdue = [name for name, lost in self._lost.items() if lost.until <= now]
        for name in overdue:
            self.forget_lost(name)
        return bool(overdue)

    def forget_lost(self, worker: str) -> None:
        """Forget a lost worker.  Does nothing if it is not lost."""
        if (lost := self._lost.pop(worker, None)) is not None:
            for place in _places(lost):
                self._by_place.discard(place, worker)
            self.ledger.remove_worker(worker)

    def suspend(self, name: str) -> bool:
        """Stop placing actors on an unreachable worker; return False if that was so already."""
        if name not in self.records or self.ledger.is_away(name):
            return False
        self.ledger.close(name, WhyClosed.AWAY)
        return True

    def away(self) -> list[str]:
        """Return the machines that are unreachable now."""
        return sorted(self._machine_of(name) for name in self.ledger.away)

    def machines(self) -> list[str]:
        """Return the names of the machines, including lost ones that may come back."""
        return sorted({*map(self._machine_of, self.records), *map(self._machine_of, self._lost)})

    def _machine_of(self, name: str) -> str:
        record = self.records.get(name)
        return record.register.machine if record else self._lost[name].machine

    def expects(self, asked: Resources, python: str, among: Set[str] | None) -> bool:
        """Return whether a lost worker that is large enough may come back."""
        return bool(self._lost) and self.ledger.could_place(
            asked, python, among, self.records.keys()
        )

    def on_machine(self, machine: str) -> list[str]:
        """Return the workers of a machine, by its name or address, including lost ones."""
        return self._by_place.of(machine)

    def beside(self, worker: str) -> list[str]:
        """Return the workers on the same host as this one; none if it is lost."""
        record = self.records.get(worker)
        return self._by_host.of(record.register.host) if record else []

    def of_python(self, python: str) -> list[str]:
        return [name for name, m in self.records.items() if m.register.python == python]

    def only_size(self) -> Resources:
        """Return the resources of the one worker of an embedded cluster."""
        return next(iter(self.records.values())).register.resources

    def _guess_predecessor(self, register: control.Register) -> list[str]:
        """Return the lost worker that this one probably replaces.

        Of the workers that a machine lost, it is one of the same size; one of another size only if
        the machine lost no other.
        """
        there = self._by_place.of((register.machine, register.address))
        lost = [name for name in there if name in self._lost]
        alike = [name for name in lost if self._lost[name].size == register.resources]
        return alike[:1] or (lost if len(lost) == 1 else [])


def _places(worker: control.Register | LostWorker) -> tuple[str, str, tuple[str, str]]:
    return worker.machine, worker.address, (worker.machine, worker.address)


# --- requests that cannot be answered yet ---------------------------------------------------------


class UnknownActor(NamedTuple):
    """An actor that a restarted master does not know, by id or, if that is not known, by name.

    Not just the actor's id: requests about an unknown actor are retried once, and those about a
    known one whenever it starts a life.
    """

    actor: str
    name: str = ""


RECOVERY = UnknownActor("", "")  # the topic of requests that wait for the end of the recovery
Topic = str | UnknownActor  # the id of an actor that is being placed or is unreachable
# A session and its request.
Deferred = tuple[str, control.Locate | control.Place | control.End | control.Hold | control.LetGo]


class DeferredRequests:
    """Client requests that cannot be answered yet, by the topic that they wait for.

    request about                                    retried when
    an actor that is being placed or restarted       it has started, or is given up
    an actor whose machine the client cannot reach   the machine is back, or is lost
    an actor unknown to a restarted master           its worker is back, or recovery ends
    a name unknown to a restarted master             the same: it may be taken
    the end of such an actor, or a holder of it      the same

    So a restarted master neither reports an actor as gone nor gives its name to another before the
    workers that may run it have had time to register.
    """

    def __init__(self) -> None:
        self.by_topic: dict[Topic, list[Deferred]] = {}
        self._placed: dict[str, UnknownActor] = {}  # by actor, the topic of a request to place it

    def add(self, topic: Topic, request: Deferred) -> None:
        """Defer a request until `release` is called for its topic."""
        self.by_topic.setdefault(topic, []).append(request)
        if isinstance(request[1], control.Place) and isinstance(topic, UnknownActor):
            self._placed[request[1].request.actor] = topic

    def release(self, topic: Topic) -> list[Deferred]:
        """Remove and return the requests about a topic."""
        released = self.by_topic.pop(topic, [])
        for _, message in released:
            if isinstance(message, control.Place):
                self._placed.pop(message.request.actor, None)
        return released

    def release_unknown(self) -> list[Deferred]:
        """Remove and return the requests about actors that a restarted master did not know."""
        unknown = [topic for topic in self.by_topic if isinstance(topic, UnknownActor)]
        return [request for topic in unknown for request in self.release(topic)]

    def request_of(self, actor: str) -> control.Request | None:
        """Return the deferred request to place this actor."""
        messages = (message for _, message in self.by_topic.get(self._placed.get(actor, ""), ()))
        requests = (m.request for m in messages if isinstance(m, control.Place))
        return next((request for request in requests if request.actor == actor), None)

    def places(self, actor: str) -> bool:
        """Return whether a request to place this actor is deferred."""
        return actor in self._placed

    def withdraw(self, actor: str) -> list[Requester]:
        """Remove and return the requests to place this actor."""
        if (topic := self._placed.get(actor)) is None:
            return []
        withdrawn = []
        for session, message in self.release(topic):
            if isinstance(message, control.Place) and message.request.actor == actor:
                withdrawn.append(Requester(session, message))
            else:
                self.add(topic, (session, message))
        return withdrawn


# --- the state ------------------------------------------------------------------------------------


class Backoff(NamedTuple):
    """The delay before room is reserved again for a request, after reservations that failed."""

    workers: Set[str]  # on which they failed
    pause_s: float  # doubles once all workers were tried
    until: float


class Reservation(NamedTuple):
    """The request for which room is reserved (reservation.py)."""

    actor: str  # of a gang, the first
    class_name: str
    gained_at: float  # when the shortfall last shrank
    shortfall: tuple[int, ...]  # see `Ledger.shortfall`


@dataclass
class State:
    """The whole state of the master, and the instructions of the current event."""

    admission: Admission
    leases: Leases
    recovers_until: float = 0.0  # until then a restarted master waits for its workers
    is_embedded: bool = False  # the cluster of one script: no machine ever joins
    counts_cpus: bool = True  # of actors that name none
    host: str = ""  # of the master
    sessions: Sessions = field(default_factory=Sessions)
    workers: WorkerTable = field(default_factory=WorkerTable)
    actors: ActorTable = field(default_factory=ActorTable)
    restarts: Restarts = field(default_factory=Restarts)
    deferred: DeferredRequests = field(default_factory=DeferredRequests)
    waiting: WaitingList = field(default_factory=WaitingList)
    history: History = field(default_factory=History)
    wait_graph: WaitGraph = field(default_factory=WaitGraph)
    reservation: Reservation | None = None
    backoffs: dict[str, Backoff] = field(default_factory=dict)  # by actor
    told_oversubscribed: bool = False
    unheard: set[str] = field(default_factory=set)  # peers that may have ended
    wanted_room_at: float = -math.inf  # when the owners of spare actors were last told
    is_closing: bool = False
    now: float = 0.0  # of the last event
    instructions: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.delegates = Delegates(self.send, self.admission)
        self.arrivals = Arrivals(is_open=not self.recovers_until)
        self.log_queries = LogQueries(self.send)
        self.status_queries = StatusQueries(self.send)
        self.timelines = Timelines(self.host, self.send)

    def send(self, peer: str, message: msgspec.Struct) -> None:
        self.instructions.append(Send(peer, message))

    def note(self, kind: Kind, machine: str, text: str, is_logged: bool = False) -> None:
        """Record an event, in the master's log too if `is_logged`."""
        self.history.add(self.now, kind, machine, text)
        if is_logged and not self.is_embedded:  # else it logs to the terminal of its script
            self.instructions.append(Log(text))

    def take_instructions(self) -> list[Instruction]:
        taken, self.instructions = self.instructions, []
        return taken

    @property
    def is_recovering(self) -> bool:
        """Whether workers of an earlier master may still come back."""
        return self.now < self.recovers_until

    @property
    def uncounted(self) -> int:
        """How many actors name no CPUs and hold none; if counted, each would hold one."""
        records = () if self.counts_cpus else self.actors.records.values()
        return sum(not record.request.names_cpus for record in records)

    def has_maker(self, request: control.Request) -> bool:
        """Return whether the client that can make the next life of an actor is there."""
        session = self.sessions.get(request.maker)
        return request.maker in self.leases and not (session and session.leaving)

    def gang_is_complete(self, request: control.Request) -> bool:
        """Return whether all of a request's gang are requested, or placed by an earlier master."""
        gang = gang_of(request)
        there = self.waiting.gang_size(gang) + self.actors.by_gang.count(gang)
        return not gang or there >= request.together

    def holder_of(self, name: str) -> control.Request | None:
        """Return the request of the actor that holds a name, alive or between two lives."""
        actor = self.actors.names.get(name, "")
        found = self.actors.records.get(actor) or self.restarts.pending.get(actor)
        return found and found.request

    def name_holder(self, request: control.Request) -> control.Request | None:
        """Return the request of another actor that has the name which a user wants for this one.

        A placement, an adoption and a guest are all refused by it: so a name leads to one actor.
        """
        holder = self.holder_of(request.name) if request.named else None
        is_other = holder is not None and holder.named and holder.actor != request.actor
        return holder if is_other else None

    def workers_for(self, request: control.Request) -> set[str] | None:
        """Return the workers on which a request may be placed, reachable or not; None for any."""
        if not request.machine and not request.near:
            return None
        found = set(self.workers.on_machine(request.machine)) if request.machine else None
        if request.near:
            record = self.actors.records.get(request.near)
            beside = self.workers.beside(record.worker) if record else []
            found = set(beside) if found is None else found.intersection(beside)
        return found
