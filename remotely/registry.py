"""What the master knows: who is there, which actor lives where, and who waits for room.

    who          is thought alive while                      its end is the end of
    worker       it has a route, or beat within the lease    its actors (WorkerLost)
    client       the same; or on this host, its process is   the actors that it owns
    actor        its worker says so                          the actors that it owns, as a client

No clock, no socket, no process: messages and `now` come in, messages go out by `tell`, and
`let_go` is called with a peer that has ended.  So 1,000 workers can be played by a loop.
Over 500 lines: one set of records, and every event that changes it.

An event costs what it touches, and not what there is: whatever would be a search among all actors,
sessions or workers has an index, kept where a record comes (`_enter`) and goes (`_forget`).  What
is still told or looked at one by one is a worker for the first client that uses a module, a worker
that is asked for the log of an actor that is no more, and everything for a status.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from remotely import control, shortage
from remotely.admission import Admission
from remotely.circles import Circles
from remotely.index import Index
from remotely.lease import EXPECTED_S, LEASE_S, Leases
from remotely.log_asks import LogAsks
from remotely.placement import Ledger, Never, Placement, Resources, Wait, listed
from remotely.restarts import Heir, Restarts
from remotely.sought import UNHEARD_OF, Sought
from remotely.waiting import Waiter, Waiting

OWNER_GRACE_S = 1.0  # for the actors of an owner that has ended: nobody waits for their results
REMEMBERED_DEATHS = 10_000


@dataclass
class Session:
    """A client, for as long as its lease lasts, over any number of connections."""

    hello: control.Hello
    key: bytes  # the listed one at its root: its own, or that behind the actor in which it lives
    job: str
    modules: set[str] = field(default_factory=set)
    leaving: bool = False


@dataclass
class Machine:
    """A worker, and what it last told of its actors."""

    register: control.Register
    reports: dict[str, control.Figures] = field(default_factory=dict)


@dataclass
class Record:
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


class Brought(NamedTuple):
    """What a worker has when it says who it is: an actor, or one about to be born."""

    request: control.Request
    gpu_ids: list[int]
    seal: bytes  # of its placement
    status: control.ActorStatus | None = None  # of one that is born
    again: bool = False


class Expected(NamedTuple):
    """A worker that was lost, and may come back: its machine may be rebooting."""

    machine: str
    host: str
    until: float


class Registry:
    """The state of a cluster.  Peers are known by their ids: of a session, of a worker."""

    def __init__(
        self,
        tell: Callable[[str, msgspec.Struct], bool],
        let_go: Callable[[str], None],
        admission: Admission,
        lease_s: float = LEASE_S,
        learns_until: float = 0.0,
        is_embedded: bool = False,
    ) -> None:
        self._tell = tell
        self._let_go = let_go
        self._admission = admission
        self._sessions: dict[str, Session] = {}
        self._workers: dict[str, Machine] = {}
        self._expected: dict[str, Expected] = {}
        self._actors: dict[str, Record] = {}
        self._names: dict[str, str] = {}
        self._waiting = Waiting()
        self._circles = Circles()
        self._deaths: OrderedDict[str, control.Obituary] = OrderedDict()
        self._log_asks = LogAsks(tell)
        self._restarts = Restarts()
        self._sought = Sought()
        self._owned: Index[str, str] = Index()  # actors, by their owner
        self._housed: Index[str, str] = Index()  # actors, by their worker
        self._watched: Index[str, str] = Index()  # actors, by a session that is told of their end
        self._inside: Index[str, str] = Index()  # sessions, by the actor in which they live
        self._using: Index[tuple[str, str], str] = Index()  # sessions, by Python and module
        self._leases: Leases = Leases(lease_s)
        self._ledger = Ledger()
        self._closing = False
        self._is_embedded = is_embedded  # a script's own: what it has is all it will ever have
        self._now = 0.0  # of the last event
        # A master that was started again hears of what lives as the workers come back.
        self._learns_until = learns_until
        self._keys_sought: Index[bytes, str] = Index()  # workers, by a key that nobody knew

    @property
    def workers(self) -> list[str]:
        return list(self._workers)

    def renew(self, who: str, now: float) -> None:
        """A peer has given proof of its life."""
        self._now = now
        self._leases.renew(who, now)

    def extend_leases(self, seconds: float) -> None:
        """The master was away for so long: nobody could renew."""
        self._leases.extend(seconds)

    def expire(self, now: float) -> list[str]:
        """End those whose lease is over, and requests that have waited long enough.

        Returns a sentence for each peer that was lost.
        """
        self._now = now
        lost = []
        for who in self._leases.expired(now):
            if machine := self._workers.get(who):
                name = machine.register.machine
                lost.append(f"lost the worker on {name}")
                why = f"{name} was last heard {self._leases.lease_s:.0f} s ago"
                self.remove_worker(who, why, may_return=True)
            elif session := self._sessions.get(who):
                lost.append(f"lost the client on {session.hello.machine}")
                self.end_session(who)
            else:  # it owned actors before this master started, and has not come back
                self._end_owned(who)
        for waiter in self._waiting.overdue(now):
            self._waiting.remove(waiter.request.actor)
            why = f"no room for {waiter.place.patience_s:g} s: {self._why_waiting(waiter.request)}"
            self._refuse(waiter.session, waiter.place, "NoResources", why)
        self._expect_no_longer()
        return lost

    def _expect_no_longer(self) -> None:
        """Tell those who have waited in vain for workers that were to come back."""
        given_up = [name for name, back in self._expected.items() if back.until <= self._now]
        for name in given_up:
            self._expect_not(name)
        has_learnt = self._learns_until and not self._is_learning
        if has_learnt:
            self._learns_until = 0.0
            self._answer_sought(UNHEARD_OF)
            self._answer_about_keys()
        if given_up or has_learnt:
            self._retry()

    def _expect_not(self, worker: str) -> None:
        del self._expected[worker]
        self._ledger.remove_worker(worker)

    def list_keys(self, client_keys: Iterable[bytes], worker_keys: Iterable[bytes]) -> None:
        """From now on these keys are listed: the workers tell their actors.

        What was placed by a key that is not among them has to end, detached or not.
        """
        self._admission.relist(client_keys, worker_keys)
        for actor, record in list(self._actors.items()):
            if not self._admission.is_listed(record.request.key):
                self._take_delegate(actor)
                self._end_actor(control.End(actor=actor, grace_s=OWNER_GRACE_S))
        registered = control.Registered(client_keys=self._admission.client_keys)
        for name in self._workers:
            self._tell(name, registered)

    def close(self) -> None:
        """The cluster is being stopped: nothing is placed any more, and every worker leaves."""
        self._closing = True
        for name in self._workers:
            self._tell(name, control.Leave())

    # --- clients ----------------------------------------------------------------------------------

    def greet(self, hello: control.Hello, key: bytes, now: float) -> bool:
        """Take in a client that was vetted; true if it is new, and not one that comes back."""
        who = hello.session
        new = who not in self._sessions
        if new:
            home = self._actors.get(hello.actor)
            self._sessions[who] = Session(
                hello, home.request.key if home else key, home.request.job if home else who
            )
            if hello.actor:
                self._inside.add(hello.actor, who)
        self.renew(who, now)
        self._preload(who, hello.modules)
        self._tell(who, control.Welcome(pythons=self._ledger.pythons, cpus=self._ledger.cpus))
        for due in self._restarts.due_by(who):  # it may not have heard
            self._tell(who, control.Died(obituary=due.obituary))
        return new

    def _preload(self, who: str, modules: list[str]) -> None:
        """Have the workers import what a client uses, unless another client uses it already."""
        session = self._sessions[who]
        python = session.hello.python
        unused = [module for module in modules if (python, module) not in self._using]
        session.modules.update(modules)
        for module in modules:
            self._using.add((python, module), who)
        if unused:
            for name, machine in self._workers.items():
                if machine.register.python == python:
                    self._tell(name, control.Preload(modules=unused))

    def hear_client(self, who: str, message: object, now: float) -> None:
        self.renew(who, now)
        match message:
            case control.Place() if not self._sessions[who].leaving:
                self._place(who, message)
            case control.End():
                self._hear_end(who, message)
            case control.Locate():
                self._locate(who, message)
            case control.AskStatus(ticket=ticket):
                self._tell(who, self._status(ticket))
            case control.ReadLog():
                self._read_log(who, message)
            case control.Blocked():
                self._hear_blocked(who, message, now)
            case control.Unblocked():
                self._circles.end(self._sessions[who].hello.actor)
            case control.Goodbye():
                self._sessions[who].leaving = True
                self._waiting.remove_session(who)
                self._end_owned(who)
                self._say_farewell(who)

    def _hear_blocked(self, who: str, blocked: control.Blocked, now: float) -> None:
        """An actor waits for another: tell it if that closes a circle."""
        actor = self._sessions[who].hello.actor
        if (record := self._actors.get(actor)) is None:
            return
        sentence = f"{record.request.name} waits for {blocked.call}"
        if circle := self._circles.hear(actor, blocked.wait, blocked.actor, sentence, now):
            why = (
                f"{' and '.join(circle)}: none of them can go on. Have one of them not wait "
                "(submit), or serve others while it waits (concurrency=2, or async methods)"
            )
            self._tell(who, control.Deadlocked(wait=blocked.wait, why=why))

    def end_session(self, who: str) -> None:
        """A client has ended, and with it the actors that it owns."""
        if (session := self._sessions.pop(who, None)) is None:
            return
        self._leases.end(who)
        self._let_go(who)
        self._inside.discard(session.hello.actor, who)
        self._circles.end(session.hello.actor)
        for module in session.modules:
            self._using.discard((session.hello.python, module), who)
        for actor in self._watched.pop(who):
            self._actors[actor].watchers.discard(who)
        self._waiting.remove_session(who)
        self._end_owned(who)

    def _end_owned(self, who: str) -> None:
        for actor in self._owned.of(who):
            self._end_actor(control.End(actor=actor, grace_s=OWNER_GRACE_S))
        for due in self._restarts.due_by(who):
            self._give_up_next_life(due.request.actor)

    def _say_farewell(self, who: str) -> None:
        """Let a client go when its actors have ended and their last output has passed."""
        session = self._sessions.get(who)
        if session and session.leaving and who not in self._owned:
            self._tell(who, control.Farewell())
            self.end_session(who)

    def _read_log(self, who: str, question: control.ReadLog) -> None:
        actor = self._names.get(question.actor, question.actor)
        record = self._actors.get(actor)
        workers = {record.worker} if record else set(self._workers)
        self._log_asks.ask(who, msgspec.structs.replace(question, actor=actor), workers)

    def _status(self, ticket: int) -> control.Status:
        workers = []
        for name, machine in sorted(self._workers.items()):
            register, free = machine.register, self._ledger.free(name)
            workers.append(
                control.WorkerStatus(
                    worker=name,
                    machine=register.machine,
                    address=register.address,
                    python=register.python,
                    cpus=register.cpus,
                    gpus=register.gpus,
                    gpu_names=register.gpu_names,
                    memory=register.memory,
                    free_cpus=free.cpus,
                    free_gpus=int(free.gpus),
                    free_memory=free.memory,
                    actors=self._statuses(name, machine),
                )
            )
        clients = [
            control.ClientStatus(
                session=session, machine=s.hello.machine, pid=s.hello.pid, actor=s.hello.actor
            )
            for session, s in self._sessions.items()
        ]
        return control.Status(
            ticket=ticket, workers=workers, clients=clients, waiting=len(self._waiting)
        )

    def _statuses(self, worker: str, machine: Machine) -> list[control.ActorStatus]:
        """Return what is known of the actors that live on a worker."""
        statuses = []
        for actor in self._housed.of(worker):
            record = self._actors[actor]
            figures = machine.reports.get(actor)
            if record.location is not None:
                statuses.append(
                    control.ActorStatus(
                        location=record.location,
                        request=record.request,
                        gpu_ids=record.gpu_ids,
                        calls=figures.calls if figures else 0,
                        cpu_percent=figures.cpu_percent if figures else 0,
                        rss=figures.rss if figures else 0,
                        since=record.since,
                    )
                )
        return statuses

    # --- placing ----------------------------------------------------------------------------------

    def _place(self, who: str, place: control.Place) -> None:
        """Place an actor for a session: it is the owner, if there is to be one."""
        session, actor = self._sessions[who], place.request.actor
        request = msgspec.structs.replace(
            place.request,
            owner=who if place.request.owner else "",
            maker=who if place.request.maker else "",
            job=session.job,
            key=session.key,
        )
        place = msgspec.structs.replace(place, request=request)
        record = self._actors.get(actor)
        for other in (record, self._waiting.get(actor), self._restarts.due(actor)):
            if other and (other.request.owner, other.request.key) != (request.owner, request.key):
                why = "this actor is another client's"
                self._tell(who, control.NotPlaced(ticket=place.ticket, error="NotAllowed", why=why))
                return
        if record is not None and record.request.life == place.request.life:  # asked again
            self._watch(who, record)
            if record.location is None:
                record.asker = who, place
            else:
                self._tell(who, control.Placed(ticket=place.ticket, location=record.location))
            return
        if record is not None:  # an earlier life, of whose end nobody has told
            self._remove(record, _lost(record))
        self._waiting.remove(actor)
        named = place.request.named and self._holder_of(place.request.name) is None
        if named and self._is_learning:
            self._sought.hold(UNHEARD_OF, who, place)
            why = "the master was started again, and an actor of that name may come back"
            self._tell(who, control.Waiting(ticket=place.ticket, why=why))
        elif not self._try(who, place):
            self._waiting.add(who, place, self._now + place.patience_s)
            why = self._why_waiting(place.request)
            self._tell(who, control.Waiting(ticket=place.ticket, why=why))

    def _watch(self, who: str, record: Record) -> None:
        """Have a session be told of an actor's end."""
        record.watchers.add(who)
        self._watched.add(who, record.request.actor)

    def _try(self, who: str, place: control.Place) -> bool:
        """Place it or refuse it; false if it has to wait."""
        request = place.request
        holder = self._holder_of(request.name)
        both_named = request.named and holder is not None and holder.named
        if both_named and self._names[request.name] != request.actor:
            self._refuse_name(who, place)
            return True
        if not self._workers or self._closing:
            return False
        if self._is_embedded and (why := self._why_never_together(request)):
            self._refuse(who, place, "NoResources", why)
            return True
        while True:
            match self._ledger.place(_asked(request), request.python):
                case Placement(worker=worker, gpu_ids=gpu_ids):
                    record = Record(request, worker, list(gpu_ids), asker=(who, place))
                    if self._tell_to_spawn(record):
                        self._enter(record, who)
                        return True
                    self._ledger.release(worker, _asked(request), gpu_ids)
                    self.lose_route(worker)  # and look for another
                case Never(reason=why) if not self._is_learning:
                    known = request.python in self._ledger.pythons
                    error = "NoResources" if known else "VersionMismatch"
                    if known and self._is_embedded:
                        why += f". {shortage.way_out(_asked(request), self._in_all())}"
                    self._refuse(who, place, error, why)
                    return True
                case Never() | Wait():
                    return False

    @property
    def _is_learning(self) -> bool:
        """Workers may come back that were there before this master."""
        return self._now < self._learns_until

    def _holder_of(self, name: str) -> control.Request | None:
        """Return who has a name, alive or between two lives."""
        actor = self._names.get(name, "")
        if record := self._actors.get(actor):
            return record.request
        due = self._restarts.due(actor)
        return due and due.request

    def _enter(self, record: Record, watcher: str) -> None:
        """An actor has its place, and its name."""
        request = record.request
        self._actors[request.actor] = record
        self._deaths.pop(request.actor, None)
        self._owned.add(request.owner, request.actor)
        self._housed.add(record.worker, request.actor)
        if watcher:
            self._watch(watcher, record)
        # Two scripts may each have a Counter-1; the name then means that of the first.
        if request.named or request.name not in self._names:
            self._names[request.name] = request.actor
        if request.named:
            for waiter in self._waiting.for_name(request.name):
                if waiter.request.actor != request.actor:
                    self._waiting.remove(waiter.request.actor)
                    self._refuse_name(waiter.session, waiter.place)

    def _tell_to_spawn(self, record: Record) -> bool:
        worker, request, gpu_ids = record.worker, record.request, record.gpu_ids
        seal = self._admission.seals.seal(worker, request, gpu_ids)
        return self._tell(
            worker,
            control.Spawn(request=request, gpu_ids=gpu_ids, again=record.again, seal=seal),
        )

    def _refuse_name(self, who: str, place: control.Place) -> None:
        why = f"an actor named {place.request.name!r} is on this cluster already"
        self._refuse(who, place, "NameTaken", why)

    def _refuse(self, who: str, place: control.Place, error: str, why: str) -> None:
        self._tell(who, control.NotPlaced(ticket=place.ticket, error=error, why=why))
        self._give_up_next_life(place.request.actor)

    def _why_waiting(self, request: control.Request) -> str:
        if not self._workers:
            return "no machine has joined the cluster"
        some = itertools.islice(self._actors.values(), shortage.SHOWN)
        holders = [self._as_holder(record, request.job) for record in some]
        why = shortage.why_waiting(
            request.class_name,
            _asked(request),
            self._ledger.most_free(),
            holders,
            len(self._actors) - len(holders),
            self._in_all() if self._is_embedded else None,
        )
        return why + self._who_may_return()

    def _why_never_together(self, request: control.Request) -> str | None:
        return shortage.why_never_together(
            request.class_name, request.together, _asked(request), self._in_all()
        )

    def _in_all(self) -> Resources:
        """Return what the one worker of a script's own cluster has."""
        register = next(iter(self._workers.values())).register
        return Resources(register.cpus, register.gpus, register.memory)

    def _as_holder(self, record: Record, job: str) -> shortage.Holder:
        request, whose = record.request, ""
        if request.job != job:
            session = self._sessions.get(request.owner)
            hello = session and session.hello
            whose = f"of pid {hello.pid} on {hello.machine}" if hello else "of another script"
        return shortage.Holder(request.name, _asked(request), whose)

    def _who_may_return(self) -> str:
        """Return who is waited for, as the end of a sentence."""
        if away := self._ledger.away:
            names = (self._machine_of(worker) for worker in away)
            return f". {listed(sorted(names))} cannot be reached now, and may come back"
        if self._is_learning:
            return ". The master was started again, and other machines may come back"
        return ""

    def _machine_of(self, worker: str) -> str:
        if worker in self._workers:
            return self._workers[worker].register.machine
        return self._expected[worker].machine

    def _retry(self, worker: str | None = None) -> None:
        """Place or refuse who waits, if they can be now; `worker`: only there is new room."""
        self._waiting.serve(
            lambda asked, python: worker is None or self._ledger.has_room(worker, asked, python),
            self._serve,
        )

    def _serve(self, waiter: Waiter) -> bool:
        """Place or refuse one that waits, and say so; false if it has to wait on."""
        served = self._try(waiter.session, waiter.place)
        if served:
            self._tell(waiter.session, control.Waiting(ticket=waiter.place.ticket, why=""))
        return served

    def _hear_end(self, who: str, end: control.End) -> None:
        """End an actor, or say that there is none: who asked asks until it hears of the end."""
        actor = end.actor
        self._end_actor(end)
        if actor in self._actors:
            return
        if self._is_learning and actor not in self._deaths:
            self._sought.hold(UNHEARD_OF, who, end)
        else:
            none = control.Obituary(actor=actor, life=0, asked=True)
            self._tell(who, control.Died(obituary=self._deaths.get(actor, none)))

    def _end_actor(self, end: control.End) -> None:
        actor = end.actor
        if record := self._actors.get(actor):
            record.ends_within_s = end.grace_s
            self._tell(record.worker, end)
        self._waiting.remove(actor)
        self._sought.withdraw(actor)
        self._give_up_next_life(actor)

    def _locate(self, who: str, ask: control.Locate) -> None:
        actor = ask.actor or self._names.get(ask.name, "")
        record = self._actors.get(actor)
        if actor in self._restarts or (record is not None and record.location is None):
            self._sought.hold(actor, who, ask)
            return
        if self._is_learning and record is None and actor not in self._deaths:
            self._sought.hold(UNHEARD_OF, who, ask)
            return
        if record is not None:
            self._watch(who, record)
        self._tell(
            who,
            control.Located(
                ticket=ask.ticket,
                location=record.location if record else None,
                obituary=self._deaths.get(actor),
            ),
        )

    def _answer_sought(self, actor: str) -> None:
        """There is news of an actor: look at the questions again."""
        for who, ask in self._sought.release(actor):
            if isinstance(ask, control.End):  # whoever asked for it, and may have gone
                self._hear_end(who, ask)
            elif who not in self._sessions:
                continue
            elif isinstance(ask, control.Place):
                self._place(who, ask)
            else:
                self._locate(who, ask)

    # --- workers ----------------------------------------------------------------------------------

    def enlist(self, register: control.Register, now: float) -> bool:
        """Take in a worker; true if it is new.  `settle` is to follow."""
        name = register.worker
        new = name not in self._workers
        self.renew(name, now)
        self._workers.setdefault(name, Machine(register))
        if new:
            for other, lost in list(self._expected.items()):
                if other == name or lost.host == register.host:  # it may be another's successor
                    self._expect_not(other)
            size = Resources(register.cpus, register.gpus, register.memory)
            self._ledger.add_worker(name, size, register.python)
        # With all that lives there, before anything else can be placed on it.
        for brought in _brought_by(register).values():
            if self._is_wanted(name, brought, new):
                self._adopt(name, brought)
        if new:
            self._answer_sought(UNHEARD_OF)
        self._tell(name, control.Registered(client_keys=self._admission.client_keys))
        return new

    def _is_wanted(self, worker: str, brought: Brought, is_new: bool) -> bool:
        """Tell whether an actor that was not known to be on a worker is to go on there.

        It is, if its worker is new to this master and the actor was not given up, or if nobody was
        told of another of the same life, which may be waiting for room or about to be born.
        """
        actor, life = brought.request.actor, brought.request.life
        if not self._is_genuine(worker, brought):
            return False
        if (waiter := self._waiting.get(actor)) is not None:
            return waiter.request.life == life
        record = self._actors.get(actor)
        if record is None:
            return is_new and actor not in self._deaths
        if record.worker == worker:
            return False
        if record.request.life == life:
            return brought.status is not None and record.location is None
        return is_new and life > record.request.life

    def _is_genuine(self, worker: str, brought: Brought) -> bool:
        """Tell whether it was placed there, by this master or the one before, and may still be."""
        request, gpu_ids, seal, *_ = brought
        return self._admission.is_listed(request.key) and self._admission.seals.is_ours(
            worker, request, gpu_ids, seal
        )

    def _adopt(self, worker: str, brought: Brought) -> None:
        """Enter an actor that its worker has brought along."""
        request, gpu_ids, _, status, again = brought
        waiter = self._waiting.remove(request.actor)
        record = Record(request, worker, gpu_ids, again=again)
        if elsewhere := self._actors.get(request.actor):
            self._tell(elsewhere.worker, control.End(actor=request.actor, grace_s=0.0, kill=True))
            if elsewhere.request.life == request.life:
                record.asker, record.ends_within_s = elsewhere.asker, elsewhere.ends_within_s
                self._take_off(elsewhere)
            else:
                self._remove(elsewhere, _lost(elsewhere))
        self._ledger.reserve(worker, _asked(request), tuple(gpu_ids))
        self._enter(record, record.asker[0] if record.asker else request.owner)
        if request.owner and request.owner not in self._sessions:
            self.renew(request.owner, self._now)
        if status is not None:
            self._spawned(worker, status.location, status.since)
        if waiter is not None:
            self._place(waiter.session, waiter.place)

    def settle(self, register: control.Register) -> None:
        """Make right what was lost on the way while a worker's connection was broken."""
        name = register.worker
        all_brought = _brought_by(register)
        for actor in self._housed.of(name):
            self._reconcile(self._actors[actor], all_brought.get(actor))
        for actor, brought in all_brought.items():  # given up, or made elsewhere meanwhile
            record = self._actors.get(actor)
            if record is None or record.worker != name:
                self._tell(name, control.End(actor=actor, grace_s=0.0, kill=True))
            elif brought.status is not None and brought.status.delegate:
                self._delegate(name, actor, brought.status.delegate)
        modules = [m for python, m in self._using if python == register.python]
        if modules:
            self._tell(name, control.Preload(modules=sorted(modules)))
        self._ledger.resume(name)
        self._retry()

    def _reconcile(self, record: Record, brought: Brought | None) -> None:
        """Compare what is known of an actor with what its worker says of it."""
        request, name, ends_within_s = record.request, record.worker, record.ends_within_s
        is_there = brought is not None and brought.request.life == request.life
        if is_there and record.location is None and brought and (status := brought.status):
            self._spawned(name, status.location, status.since)
        if ends_within_s is not None and is_there:
            self._tell(name, control.End(actor=request.actor, grace_s=ends_within_s))
        elif ends_within_s is not None:
            self._forget(msgspec.structs.replace(_lost(record), lost=False, asked=True))
        elif not is_there and record.location is None:
            self._tell_to_spawn(record)
        elif not is_there:
            self._forget(_lost(record))

    def hear_worker(self, who: str, message: object, now: float) -> None:
        self.renew(who, now)
        match message:
            case control.Beat(asked=asked) if asked:
                self._tell(who, control.Tick(asked=asked))
            case control.Spawned(location=location, since=since):
                self._spawned(who, location, since)
            case control.Died(obituary=obituary, lived=lived):
                if lived is not None and self._is_learning and obituary.actor not in self._actors:
                    brought = Brought(lived.request, lived.gpu_ids, lived.seal, lived)
                    if self._is_wanted(who, brought, is_new=True):  # it died without a master
                        self._adopt(who, brought)
                if self._is_housed(obituary.actor, who):
                    self._forget(obituary)
                if lived is not None:
                    self._answer_sought(UNHEARD_OF)
            case control.Report(actors=actors):
                self._workers[who].reports = {figures.actor: figures for figures in actors}
            case control.Output(actor=actor) if self._is_housed(actor, who):
                request = self._actors[actor].request
                self._tell(request.job, msgspec.structs.replace(message, name=request.name))
            case control.LogPiece():
                self._log_asks.hear(who, message)
            case control.Delegate(actor=actor, key=key) if self._is_housed(actor, who):
                self._delegate(who, actor, key)
            case control.MayCall(key=key):
                if self._admission.role_of(key) is None and now < self._learns_until:
                    self._keys_sought.add(key, who)
                else:
                    self._tell_of_caller(who, key)
            case control.Left():
                self.remove_worker(who, "its worker was stopped")

    def _is_housed(self, actor: str, worker: str) -> bool:
        """Tell whether this worker is the one that speaks for an actor."""
        record = self._actors.get(actor)
        return record is not None and record.worker == worker

    def _delegate(self, worker: str, actor: str, key: bytes) -> None:
        """An actor that lives, of a key that is listed, makes calls with a key of its own."""
        record = self._actors[actor]
        if record.location is None or not self._admission.is_listed(record.request.key):
            return
        if self._admission.delegate(actor, key):
            self._tell(worker, control.Delegated(actor=actor))
            self._answer_about_keys()

    def _take_delegate(self, actor: str) -> None:
        """An actor makes no calls any more: whoever let it in is told."""
        key, told = self._admission.end(actor)
        for worker in told:
            self._tell(worker, control.Caller(key=key, admitted=False))

    def _answer_about_keys(self) -> None:
        """Tell of those that a new master did not know, and now does, or never will."""
        for key in list(self._keys_sought):
            if self._admission.role_of(key) or self._now >= self._learns_until:
                for worker in self._keys_sought.pop(key):
                    self._tell_of_caller(worker, key)

    def _tell_of_caller(self, worker: str, key: bytes) -> None:
        admitted = self._admission.role_of(key) == "client"
        self._admission.note_told(worker, key)
        self._tell(worker, control.Caller(key=key, admitted=admitted))

    def _spawned(self, worker: str, location: control.Location, since: float) -> None:
        record = self._actors.get(location.actor)
        if record is None or record.worker != worker:
            self._tell(worker, control.End(actor=location.actor, grace_s=0.0, kill=True))
            return
        if record.request.life != location.life:
            return
        self._restarts.settle(location.actor)
        location = _as_placed(record.request, location)
        record.location, record.since = location, since
        if record.asker:
            session, place = record.asker
            record.asker = None
            self._tell(session, control.Placed(ticket=place.ticket, location=location))
            if session not in self._sessions:  # it went while we were placing
                self._end_actor(control.End(actor=location.actor, grace_s=OWNER_GRACE_S))
        self._answer_sought(location.actor)

    def lose_route(self, name: str) -> None:
        """A worker cannot be reached now: until it is back, nothing is placed there."""
        if name in self._workers and name not in self._ledger.away:
            self._ledger.suspend(name)
            self._place_elsewhere(name)

    def remove_worker(self, name: str, why: str, may_return: bool = False) -> None:
        """A worker has ended, and its actors with it.  `may_return`: it is only lost."""
        if (machine := self._workers.pop(name, None)) is None:
            return
        self._leases.end(name)
        self._let_go(name)
        if may_return:
            register = machine.register
            until = self._now + EXPECTED_S
            self._expected[name] = Expected(register.machine, register.host, until)
            self._ledger.suspend(name)
        else:
            self._ledger.remove_worker(name)
        self._place_elsewhere(name)
        for actor in self._housed.of(name):
            self._forget(_lost(self._actors[actor], why))
        self._log_asks.remove_worker(name)
        self._retry()  # for some, no machine may be left that is large enough

    def _place_elsewhere(self, worker: str) -> None:
        """Place again what was about to be born on a worker: nobody was told of it, nothing ran."""
        housed = [self._actors[actor] for actor in self._housed.of(worker)]
        unborn = [(record, record.asker) for record in housed if record.asker]
        for record, _ in unborn:
            self._take_off(record)
        for record, (session, place) in unborn:
            if session in self._sessions and record.ends_within_s is None:
                self._place(session, place)
            self._answer_sought(record.request.actor)
            self._say_farewell(record.request.owner)

    # --- the end of a life ------------------------------------------------------------------------

    def _forget(self, obituary: control.Obituary) -> None:
        """A life of an actor has ended; there may be another."""
        record = self._actors.get(obituary.actor)
        if record is None or record.request.life != obituary.life:
            return
        if record.ends_within_s is not None:  # it died before its worker had heard so
            obituary = msgspec.structs.replace(obituary, asked=True)
        heir = self._heir_of(record, obituary)
        if heir is Heir.WORKER:
            self._begin_again(record, obituary)
        else:
            restarting = heir is Heir.MAKER
            self._remove(record, msgspec.structs.replace(obituary, restarting=restarting))

    def _heir_of(self, record: Record, obituary: control.Obituary) -> Heir:
        """Decide who makes the next life, if anybody, and count it."""
        request = record.request
        has_lived = record.location is not None
        if not request.max_restarts or obituary.asked or self._closing or not has_lived:
            return Heir.NOBODY
        maker = self._sessions.get(request.maker)
        heir = Heir.NOBODY
        if not request.owner and not obituary.lost:
            heir = Heir.WORKER
        elif request.maker in self._leases and not (maker and maker.leaving):
            heir = Heir.MAKER
        if heir is not Heir.NOBODY and not self._restarts.count(request, self._now):
            heir = Heir.NOBODY
        return heir

    def _begin_again(self, record: Record, obituary: control.Obituary) -> None:
        """The worker makes the next life, in the same place."""
        self._tell_of_death(record, msgspec.structs.replace(obituary, restarting=True))
        record.request = msgspec.structs.replace(record.request, life=obituary.life + 1)
        record.location, record.again = None, True
        self._tell_to_spawn(record)

    def _remove(self, record: Record, obituary: control.Obituary) -> None:
        """Free what an actor held, tell who watched, end what it owned."""
        request, actor = record.request, obituary.actor
        self._take_off(record)
        self._remember(obituary)
        if record.asker:
            session, place = record.asker
            self._refuse(session, place, *_why_not_born(obituary))
        self._tell_of_death(record, obituary)
        if obituary.restarting:
            self._restarts.expect(request, obituary)
            self._names.setdefault(request.name, actor)
        else:
            self._end_for_good(request)
        self._say_farewell(request.owner)
        if record.worker in self._workers:
            if request.max_restarts and not request.owner:  # it may have left a recipe
                self._tell(record.worker, control.End(actor=actor, grace_s=0.0))
            self._retry(record.worker)

    def _take_off(self, record: Record) -> None:
        """An actor has no place any more, and so nobody makes calls in its name."""
        request, actor = record.request, record.request.actor
        self._take_delegate(actor)
        del self._actors[actor]
        self._owned.discard(request.owner, actor)
        self._housed.discard(record.worker, actor)
        for session in record.watchers:
            self._watched.discard(session, actor)
        self._ledger.release(record.worker, _asked(request), tuple(record.gpu_ids))
        if self._names.get(request.name) == actor and actor not in self._restarts:
            del self._names[request.name]

    def _remember(self, obituary: control.Obituary) -> None:
        self._deaths[obituary.actor] = obituary
        while len(self._deaths) > REMEMBERED_DEATHS:
            self._deaths.popitem(last=False)

    def _tell_of_death(self, record: Record, obituary: control.Obituary) -> None:
        for session in record.watchers:
            self._tell(session, control.Died(obituary=obituary))
        self._take_delegate(obituary.actor)
        for session in self._inside.of(obituary.actor):
            self.end_session(session)

    def _give_up_next_life(self, actor: str) -> None:
        """If an actor's next life was due, there is none after all."""
        if due := self._restarts.settle(actor):
            self._remember(msgspec.structs.replace(due.obituary, restarting=False))
            self._end_for_good(due.request)

    def _end_for_good(self, request: control.Request) -> None:
        if self._names.get(request.name) == request.actor:
            del self._names[request.name]
        self._restarts.forget(request.actor)
        self._answer_sought(request.actor)


def _asked(request: control.Request) -> Resources:
    return Resources(request.cpus, request.gpus, request.memory)


def _brought_by(register: control.Register) -> dict[str, Brought]:
    """Return what a worker has, by actor: of two lives the one to come."""
    born = {s.request.actor: Brought(s.request, s.gpu_ids, s.seal, s) for s in register.actors}
    births = {
        b.request.actor: Brought(b.request, b.gpu_ids, b.seal, None, b.again)
        for b in register.births
    }
    return {**born, **births}


def _as_placed(request: control.Request, said: control.Location) -> control.Location:
    """Return where an actor lives, under the names with which it was placed."""
    return msgspec.structs.replace(
        said, actor=request.actor, name=request.name, class_name=request.class_name
    )


def _lost(record: Record, why: str = "") -> control.Obituary:
    return control.Obituary(
        actor=record.request.actor, life=record.request.life, lost=True, why=why
    )


def _why_not_born(obituary: control.Obituary) -> tuple[str, str]:
    """Return the error, and the words, for who asked for an actor that ended at its birth."""
    if obituary.lost:
        return "WorkerLost", obituary.why
    how = "" if obituary.exit is None else f" ({obituary.exit})"
    why = f"its process ended at birth{how}: {obituary.why} {obituary.stderr}"
    return "ActorDied", why
