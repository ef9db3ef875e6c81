"""The state of a cluster as its master knows it, and the instructions that follow from an event.

    who          is thought alive while                      its end is the end of
    worker       it has a route, or beat within the lease    its actors (WorkerLost)
    client       the same; or on this host, its process is   the actors that it owns
    actor        its worker says so                          the actors that it owns, as a client

A record names what belongs to it; an index is the way back.  Indexes are kept where a record comes
and goes, here and nowhere else, so an event costs what it touches and not what there is.

Over 500 lines: all that is known, in one place.  core.py and actors.py change it; ledger.py,
waiting.py and arrivals.py hold parts of it.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from remotely.master.admission import Admission, Delegates
from remotely.master.arrivals import Arrivals
from remotely.master.ledger import Ledger
from remotely.master.queries import LogQueries, StatusQueries
from remotely.master.wait_graph import WaitGraph
from remotely.master.waiting import WaitingList, gang_of
from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.protocol.lease import EXPECTED_S, RESTARTS_WITHIN_S, Leases
from remotely.protocol.resources import Resources

REMEMBERED_DEATHS = 10_000
REMEMBERED_FLIGHT_RECORDS = 16  # of those; each may be a MiB
SHOWN_ENDS = 20  # in a status


# --- instructions ---------------------------------------------------------------------------------


class Tell(NamedTuple):
    """Send a message to a peer.  If there is no route to it, `Core.lose_route` is to be told."""

    who: str
    message: msgspec.Struct


class LetGo(NamedTuple):
    """Forget the connection of a peer that has ended."""

    who: str


class Probe(NamedTuple):
    """Try the route to a worker, and then have the core hear this question (`Core.locate`)."""

    worker: str
    asker: str
    question: control.Locate


class Log(NamedTuple):
    """Write a line to the log of the master."""

    sentence: str


Instruction = Tell | LetGo | Probe | Log


# --- actors ---------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A request for an actor, and the session that made it."""

    session: str
    place: control.Place


@dataclass(slots=True)
class ActorRecord:
    """An actor that has a place, or is about to have one."""

    request: control.Request
    worker: str = ""
    gpu_ids: list[int] = field(default_factory=list)
    location: control.Location | None = None  # where it was born
    since: float = 0  # wall clock, for people alone
    asker: Asked | None = None  # of a placement that is under way
    watchers: set[str] = field(default_factory=set)  # sessions that are told of its end
    again: bool = False  # started from what its last life left there
    ends_within_s: float | None = None  # if it was asked to end; its worker may not have heard

    def lost(self, why: str = "", restarting: bool = False) -> control.Obituary:
        """Return what is told of it when nobody saw its end; of a guest's, its process has.

        `restarting`: another life follows.
        """
        is_guest = bool(self.request.classes)
        return control.Obituary(
            actor=self.request.actor,
            life=self.request.life,
            lost=not is_guest,
            why=why,
            restarting=restarting,
        )

    def closed(self) -> control.Obituary:
        """Return what is told of it when it was asked to end, and is not there any more."""
        return control.Obituary(actor=self.request.actor, life=self.request.life, asked=True)


class UnaskedEnd(NamedTuple):
    """The end of an actor that nobody had asked for, and when and where that was."""

    request: control.Request
    machine: str  # of this life: the next may be elsewhere
    obituary: control.Obituary
    at: float


class ActorTable:
    """The actors that have a place, the names that they hold, and how others have ended."""

    def __init__(self) -> None:
        self.unasked_ends: deque[UnaskedEnd] = deque(maxlen=SHOWN_ENDS)  # newest first
        self.records: dict[str, ActorRecord] = {}
        self.by_owner: Index[str, str] = Index()
        self.by_worker: Index[str, str] = Index()
        self.by_gang: Index[str, str] = Index()
        self.by_watcher: Index[str, str] = Index()
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
        self.by_gang.discard(request.gang, request.actor)
        for session in record.watchers:
            self.by_watcher.discard(session, request.actor)

    def free_name(self, request: control.Request) -> None:
        """An actor holds its name no more; another's stays."""
        if self.names.get(request.name) == request.actor:
            del self.names[request.name]

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
                self._drop_flight_record(self._recorded.popleft())
        while len(self.deaths) > REMEMBERED_DEATHS:
            self.deaths.popitem(last=False)

    def _drop_flight_record(self, actor: str) -> None:
        if (obituary := self.deaths.get(actor)) is not None and actor not in self._recorded:
            self.deaths[actor] = msgspec.structs.replace(obituary, flight_record=b"")

    def is_on(self, actor: str, worker: str) -> bool:
        """Tell whether this worker is the one that speaks for an actor."""
        record = self.records.get(actor)
        return record is not None and record.worker == worker

    def on_worker(self, worker: str) -> list[ActorRecord]:
        return [self.records[actor] for actor in self.by_worker.of(worker)]

    def watch(self, who: str, record: ActorRecord) -> None:
        """Have a session be told of an actor's end."""
        record.watchers.add(who)
        self.by_watcher.add(who, record.request.actor)

    def unwatch(self, who: str) -> None:
        """A session has ended."""
        for actor in self.by_watcher.pop(who):
            self.records[actor].watchers.discard(who)


class Due(NamedTuple):
    """An actor between two lives, whose next one its maker is about to ask for."""

    request: control.Request  # of the life that ended
    obituary: control.Obituary


class Restarts:
    """How many lives actors have begun, and which of them are between two.

    A master that was started again counts from zero.
    """

    def __init__(self) -> None:
        self.begun: dict[str, deque[float]] = {}  # when lives began, after the first
        self.due: dict[str, Due] = {}
        self._of_maker: Index[str, str] = Index()  # actors that are due

    def count(self, request: control.Request, now: float) -> bool:
        """Count one more life of an actor; false if it has had as many as it may."""
        begun = self.begun.setdefault(request.actor, deque())
        while begun and begun[0] <= now - RESTARTS_WITHIN_S:
            begun.popleft()
        if len(begun) >= request.max_restarts:
            return False
        begun.append(now)
        return True

    def expect(self, request: control.Request, obituary: control.Obituary) -> None:
        """Its maker is told, and is to ask for its next life."""
        self.due[request.actor] = Due(request, obituary)
        self._of_maker.add(request.maker, request.actor)

    def due_by(self, maker: str) -> list[Due]:
        """Return what a client is to make again."""
        return [self.due[actor] for actor in self._of_maker.of(maker)]

    def settle(self, actor: str) -> Due | None:
        """Its next life has a place, or there will be none."""
        if (due := self.due.pop(actor, None)) is not None:
            self._of_maker.discard(due.request.maker, actor)
        return due


# --- clients --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Session:
    """A client, for as long as its lease lasts, over any number of connections."""

    hello: control.Hello
    key: bytes  # the listed one at its root: its own, or that behind the actor in which it lives
    job: str
    is_viewer: bool = False  # it makes no calls, and is not asked how many it has made
    modules: set[str] = field(default_factory=set)
    leaving: bool = False
    unanswered: dict[str, int] = field(default_factory=dict)  # calls, by actor; as last told

    def stamp(self, place: control.Place, counts_cpus: bool) -> control.Place:
        """Return a request with those fields that are not for the client to fill in."""
        said, who = place.request, self.hello.session
        resources = said.resources
        if not (said.names_cpus or counts_cpus):
            resources = msgspec.structs.replace(resources, cpus=0.0)
        request = msgspec.structs.replace(
            said,
            owner=who if said.owner else "",
            maker=who if said.maker else "",
            job=self.job,
            key=self.key,
            resources=resources,
        )
        return msgspec.structs.replace(place, request=request)


class Sessions:
    """The clients that are there: scripts, and actors that make calls of their own."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self.inside: Index[str, str] = Index()  # sessions, by the actor in which they live
        self.using: Index[tuple[str, str], str] = Index()  # sessions, by Python and module

    def __contains__(self, who: object) -> bool:
        return who in self._sessions

    def __getitem__(self, who: str) -> Session:
        return self._sessions[who]

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, who: str) -> Session | None:
        return self._sessions.get(who)

    def begin(self, session: Session) -> None:
        hello = session.hello
        self._sessions[hello.session] = session
        if hello.actor:
            self.inside.add(hello.actor, hello.session)

    def end(self, who: str) -> Session | None:
        """Take a session off; return it, if it was there."""
        if (session := self._sessions.pop(who, None)) is None:
            return None
        self.inside.discard(session.hello.actor, who)
        for module in session.modules:
            self.using.discard((session.hello.python, module), who)
        return session

    def use(self, who: str, modules: Iterable[str]) -> list[str]:
        """A client uses these modules; return those that nobody used before."""
        session = self._sessions[who]
        python = session.hello.python
        unused = [module for module in modules if (python, module) not in self.using]
        session.modules.update(modules)
        for module in modules:
            self.using.add((python, module), who)
        return unused

    def modules_of(self, python: str) -> list[str]:
        """Return what the clients with a Python use."""
        return sorted(module for version, module in self.using if version == python)


# --- workers --------------------------------------------------------------------------------------


@dataclass(slots=True)
class WorkerRecord:
    """A worker, and what it last told of its actors."""

    register: control.Register
    is_near: bool = False  # on the master's machine
    reports: dict[str, control.Figures] = field(default_factory=dict)


class Expected(NamedTuple):
    """A worker that was lost, and may come back."""

    machine: str
    address: str
    size: Resources
    until: float


class WorkerTable:
    """Workers by their ids, and what is free on each.

    A lost worker stays in the ledger for EXPECTED_S, since its machine may be rebooting: a request
    that needs a machine of its size waits for it, and is not refused.
    """

    def __init__(self) -> None:
        self.records: dict[str, WorkerRecord] = {}
        self.ledger = Ledger()
        self._expected: dict[str, Expected] = {}
        # By machine, by address, and by both; lost ones too.
        self._by_place: Index[str | tuple[str, str], str] = Index()
        self._by_host: Index[str, str] = Index()

    def __contains__(self, worker: object) -> bool:
        return worker in self.records

    def join(
        self, register: control.Register, is_near: bool = False, predecessors: Iterable[str] = ()
    ) -> None:
        """A worker is there that was not: one that was lost, or the next in the place of such.

        It takes the place of `predecessors`.
        """
        name = register.worker
        known = [before for before in (name, *predecessors) if before in self._expected]
        for before in known or self._guess_before(register):
            self.expect_not(before)
        self.records[name] = WorkerRecord(register, is_near)
        for place in _places(register):
            self._by_place.add(place, name)
        self._by_host.add(register.host, name)
        self.ledger.add_worker(name, register.resources, register.python)

    def leave(self, name: str, now: float, may_return: bool) -> None:
        """A worker is there no more.  `may_return`: it is only lost."""
        register = self.records.pop(name).register
        self._by_host.discard(register.host, name)
        lost = Expected(register.machine, register.address, register.resources, now + EXPECTED_S)
        self._expected[name] = lost
        self.ledger.suspend(name)
        if not may_return:
            self.expect_not(name)

    def give_up(self, now: float) -> bool:
        """Expect those no longer whose time is over; true if there were any."""
        overdue = [name for name, lost in self._expected.items() if lost.until <= now]
        for name in overdue:
            self.expect_not(name)
        return bool(overdue)

    def expect_not(self, worker: str) -> None:
        """A lost worker does not come back; one that was not lost is no matter of this."""
        if (lost := self._expected.pop(worker, None)) is not None:
            for place in _places(lost):
                self._by_place.discard(place, worker)
            self.ledger.remove_worker(worker)

    def suspend(self, name: str) -> bool:
        """Place nothing on a worker that cannot be reached; false if nothing was."""
        if name not in self.records or name in self.ledger.away:
            return False
        self.ledger.suspend(name)
        return True

    def away(self) -> list[str]:
        """Return the machines that cannot be reached now."""
        return sorted(self._machine_of(name) for name in self.ledger.away)

    def machines(self) -> list[str]:
        """Return the names of the machines that are there, or may come back."""
        return sorted(
            {*map(self._machine_of, self.records), *map(self._machine_of, self._expected)}
        )

    def _machine_of(self, name: str) -> str:
        record = self.records.get(name)
        return record.register.machine if record else self._expected[name].machine

    def on_machine(self, machine: str) -> list[str]:
        """Return the workers of a machine, by its name or address, lost ones included."""
        return self._by_place.of(machine)

    def beside(self, worker: str) -> list[str]:
        """Return the workers of the machine on which a worker is; none if that is lost."""
        record = self.records.get(worker)
        return self._by_host.of(record.register.host) if record else []

    def of_python(self, python: str) -> list[str]:
        return [name for name, m in self.records.items() if m.register.python == python]

    def only_size(self) -> Resources:
        """Return what the one worker of a script's own cluster has."""
        return next(iter(self.records.values())).register.resources

    def _guess_before(self, register: control.Register) -> list[str]:
        """Return the lost worker whose place this one takes, as far as can be told.

        A machine may have several.  Of those that were lost it is one of the same size; one of
        another size only if it is the only one.
        """
        there = self._by_place.of((register.machine, register.address))
        lost = [name for name in there if name in self._expected]
        alike = [name for name in lost if self._expected[name].size == register.resources]
        return alike[:1] or (lost if len(lost) == 1 else [])


def _places(worker: control.Register | Expected) -> tuple[str, str, tuple[str, str]]:
    return worker.machine, worker.address, (worker.machine, worker.address)


# --- questions that cannot be answered yet --------------------------------------------------------


class Unknown(NamedTuple):
    """An actor unknown to a new master, by its id or, if that is not known, its name.

    An actor that is being made has news at each of its lives; this one has news only once.
    """

    actor: str
    name: str = ""


Topic = str | Unknown  # an actor's id, of one that is being made or is away
Question = tuple[str, control.Locate | control.Place | control.End]  # a session, and what it asks


class Questions:
    """What clients ask that cannot be answered yet, by the topic on which the answer depends.

    about                                          is answered when
    an actor that is being made, or made again     it has a place, or will have none
    an actor whose machine the asker cannot reach  the machine is back, or is lost
    an actor unknown to a new master               its worker is back, or none comes any more
    a name unknown to a new master                 the same: it may be taken
    the end of such an actor                       the same

    So after a restart of the master nobody is told that an actor is gone, and no name is given to a
    second actor, before those who know better could say so.
    """

    def __init__(self) -> None:
        self.held: dict[Topic, list[Question]] = {}
        self._placed: dict[str, Unknown] = {}  # by actor, what a request to place it waits for

    def hold(self, topic: Topic, question: Question) -> None:
        """Keep a question until there is news."""
        self.held.setdefault(topic, []).append(question)
        if isinstance(question[1], control.Place) and isinstance(topic, Unknown):
            self._placed[question[1].request.actor] = topic

    def release(self, topic: Topic) -> list[Question]:
        """There is news: return what was asked, no longer held."""
        released = self.held.pop(topic, [])
        for _, ask in released:
            if isinstance(ask, control.Place):
                self._placed.pop(ask.request.actor, None)
        return released

    def release_unknown(self) -> list[Question]:
        """Release all that a new master did not know."""
        unknown = [topic for topic in self.held if isinstance(topic, Unknown)]
        return [question for topic in unknown for question in self.release(topic)]

    def request_of(self, actor: str) -> control.Request | None:
        """Return the request to place an actor that is held."""
        asked = (ask for _, ask in self.held.get(self._placed.get(actor, ""), ()))
        requests = (ask.request for ask in asked if isinstance(ask, control.Place))
        return next((request for request in requests if request.actor == actor), None)

    def places(self, actor: str) -> bool:
        """Tell whether a request to place this actor is held."""
        return actor in self._placed

    def withdraw(self, actor: str) -> list[Asked]:
        """Drop the requests to place an actor that is not wanted any more; return them."""
        if (topic := self._placed.get(actor)) is None:
            return []
        withdrawn = []
        for session, ask in self.release(topic):
            if isinstance(ask, control.Place) and ask.request.actor == actor:
                withdrawn.append(Asked(session, ask))
            else:
                self.hold(topic, (session, ask))
        return withdrawn


# --- all of it ------------------------------------------------------------------------------------


class Vain(NamedTuple):
    """Room was kept for a request in vain."""

    workers: Set[str]  # there
    pause_s: float  # the last, after all were tried
    until: float  # it is kept again


class Kept(NamedTuple):
    """The request for which room is kept (kept_room.py)."""

    actor: str  # of a group the first
    class_name: str
    gained_at: float  # when something has last come of it
    lacks: tuple[int, ...]  # what is missing of that room, as `Ledger.lacks` has it


@dataclass
class State:
    """What the master knows, as one value, and what is to be done about the last event."""

    admission: Admission
    leases: Leases
    learns_until: float = 0.0  # a new master hears of what lives as the workers come back
    is_embedded: bool = False  # a script's own: what it has is all it will ever have
    counts_cpus: bool = True  # of actors that name none
    sessions: Sessions = field(default_factory=Sessions)
    workers: WorkerTable = field(default_factory=WorkerTable)
    actors: ActorTable = field(default_factory=ActorTable)
    restarts: Restarts = field(default_factory=Restarts)
    questions: Questions = field(default_factory=Questions)
    waiting: WaitingList = field(default_factory=WaitingList)
    wait_graph: WaitGraph = field(default_factory=WaitGraph)
    kept: Kept | None = None
    vain: dict[str, Vain] = field(default_factory=dict)  # by actor
    is_crowd_told: bool = False
    is_closing: bool = False
    now: float = 0.0  # of the last event
    instructions: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.delegates = Delegates(self.tell, self.admission)
        self.arrivals = Arrivals(is_open=not self.learns_until)
        self.log_queries = LogQueries(self.tell)
        self.status_queries = StatusQueries(self.tell)

    def tell(self, who: str, message: msgspec.Struct) -> None:
        self.instructions.append(Tell(who, message))

    def take_instructions(self) -> list[Instruction]:
        taken, self.instructions = self.instructions, []
        return taken

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
        """Return the request of the actor that has a name, alive or between two lives."""
        actor = self.actors.names.get(name, "")
        found = self.actors.records.get(actor) or self.restarts.due.get(actor)
        return found and found.request

    def workers_for(self, request: control.Request) -> set[str] | None:
        """Return the workers on which a request may be placed, away or not; None if on any."""
        if not request.machine and not request.near:
            return None
        found = set(self.workers.on_machine(request.machine)) if request.machine else None
        if request.near:
            record = self.actors.records.get(request.near)
            beside = self.workers.beside(record.worker) if record else []
            found = set(beside) if found is None else found.intersection(beside)
        return found
