"""What the master knows: who is there, which actor lives where, and who waits for room.

    who          is thought alive while                      its end is the end of
    worker       it has a route, or beat within the lease    its actors (WorkerLost)
    client       the same; or on this host, its process is   the actors that it owns
    actor        its worker says so                          the actors that it owns, as a client

No clock, no socket, no process: messages and `now` come in, messages go out by `tell`, and
`let_go` is called with a peer that has ended.  So 1,000 workers can be played by a loop.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from remotely import control
from remotely.lease import LEASE_S, Leases
from remotely.placement import Ledger, Never, Placement, Resources, Wait

OWNER_GRACE_S = 1.0  # for the actors of an owner that has ended: nobody waits for their results
REMEMBERED_DEATHS = 10_000


@dataclass
class Session:
    """A client, for as long as its lease lasts, over any number of connections."""

    hello: control.Hello
    leaving: bool = False


@dataclass
class Machine:
    """A worker, and the actors that it last told of."""

    register: control.Register
    reports: dict[str, control.ActorStatus] = field(default_factory=dict)


@dataclass
class Record:
    """An actor, placed."""

    request: control.Request
    worker: str
    gpu_ids: list[int]
    location: control.Location | None = None
    asker: tuple[str, int] | None = None  # session and ticket of a placement that is under way
    watchers: set[str] = field(default_factory=set)


@dataclass
class LogAsk:
    """A client that wants an actor's output; `unheard`: the workers that have not answered."""

    session: str
    ticket: int
    unheard: set[str]


@dataclass
class Waiter:
    """A request for which there is no room yet."""

    session: str
    place: control.Place
    deadline: float


class Registry:
    """The state of a cluster.  Peers are known by their ids: of a session, of a worker."""

    def __init__(
        self,
        tell: Callable[[str, msgspec.Struct], object],
        let_go: Callable[[str], None],
        client_keys: list[bytes],
        lease_s: float = LEASE_S,
    ) -> None:
        self._tell = tell
        self._let_go = let_go
        self._client_keys = client_keys
        self._sessions: dict[str, Session] = {}
        self._workers: dict[str, Machine] = {}
        self._actors: dict[str, Record] = {}
        self._names: dict[str, str] = {}
        self._waiting: list[Waiter] = []
        self._deaths: OrderedDict[str, control.Obituary] = OrderedDict()
        self._log_asks: dict[int, LogAsk] = {}
        self._log_ids = itertools.count(1)
        self._leases: Leases = Leases(lease_s)
        self._ledger = Ledger()
        self._closing = False

    @property
    def workers(self) -> list[str]:
        return list(self._workers)

    def renew(self, who: str, now: float) -> None:
        """A peer has given proof of its life."""
        self._leases.renew(who, now)

    def expire(self, now: float) -> list[str]:
        """End those whose lease is over, and requests that have waited long enough.

        Returns a sentence for each peer that was lost.
        """
        lost = []
        for who in self._leases.expired(now):
            if machine := self._workers.get(who):
                name = machine.register.machine
                lost.append(f"lost the worker on {name}")
                why = f"{name} was last heard {self._leases.lease_s:.0f} s ago"
                self.remove_worker(who, why)
            elif session := self._sessions.get(who):
                lost.append(f"lost the client on {session.hello.machine}")
                self.end_session(who)
            else:  # it owned actors before this master started, and has not come back
                self._end_owned(who)
        for waiter in [w for w in self._waiting if w.deadline <= now]:
            self._waiting.remove(waiter)
            why = f"{self._why_waiting(waiter.place.request)} for {waiter.place.patience_s:.0f} s"
            self._refuse(waiter.session, waiter.place.ticket, "NoResources", why)
        return lost

    def close(self) -> None:
        """The cluster is being stopped: nothing is placed any more, and every worker leaves."""
        self._closing = True
        for name in self._workers:
            self._tell(name, control.Leave())

    # --- clients ----------------------------------------------------------------------------------

    def greet(self, hello: control.Hello, now: float) -> bool:
        """Take in a client; true if it is new, and not one that comes back."""
        new = hello.session not in self._sessions
        if new:
            self._sessions[hello.session] = Session(hello)
        self.renew(hello.session, now)
        for name, worker in self._workers.items():
            if hello.modules and worker.register.python == hello.python:
                self._tell(name, control.Preload(modules=hello.modules))
        registers = [worker.register for worker in self._workers.values()]
        pythons = sorted({register.python for register in registers})
        cpus = sum(register.cpus for register in registers)
        self._tell(hello.session, control.Welcome(pythons=pythons, cpus=cpus))
        return new

    def hear_client(self, who: str, message: object, now: float) -> None:
        self.renew(who, now)
        match message:
            case control.Place():
                self._place(who, message, now)
            case control.End(actor=actor, grace_s=grace_s):
                self._end_actor(actor, grace_s)
            case control.Locate():
                self._locate(who, message)
            case control.AskStatus(ticket=ticket):
                self._tell(who, self._status(ticket))
            case control.ReadLog(ticket=ticket, actor=actor, offset=offset):
                self._read_log(who, ticket, actor, offset)
            case control.Goodbye():
                self._sessions[who].leaving = True
                self._end_owned(who)
                self._say_farewell(who)

    def end_session(self, who: str) -> None:
        """A client has ended, and with it the actors that it owns."""
        if self._sessions.pop(who, None) is None:
            return
        self._leases.end(who)
        self._let_go(who)
        self._waiting = [w for w in self._waiting if w.session != who]
        for record in self._actors.values():
            record.watchers.discard(who)
        self._end_owned(who)

    def _owned(self, who: str) -> list[Record]:
        return [record for record in self._actors.values() if record.request.owner == who]

    def _end_owned(self, who: str) -> None:
        for record in self._owned(who):
            self._end_actor(record.request.actor, OWNER_GRACE_S)

    def _say_farewell(self, who: str) -> None:
        """Let a client go when its actors have ended and their last output has passed."""
        session = self._sessions.get(who)
        if session and session.leaving and not self._owned(who):
            self._tell(who, control.Farewell())
            self.end_session(who)

    def _read_log(self, who: str, ticket: int, actor: str, offset: int) -> None:
        actor = self._names.get(actor, actor)
        record = self._actors.get(actor)  # an ended actor's file lies where it lived: ask them all
        workers = {record.worker} if record else set(self._workers)
        ask = next(self._log_ids)
        self._log_asks[ask] = LogAsk(who, ticket, workers)
        message = control.ReadLog(ticket=ask, actor=actor, offset=offset)
        for worker in workers:
            self._tell(worker, message)
        self._check_log_asks()

    def _pass_log(self, worker: str, piece: control.LogPiece) -> None:
        if ask := self._log_asks.get(piece.ticket):
            ask.unheard.discard(worker)
            if piece.known:
                del self._log_asks[piece.ticket]
                self._tell(ask.session, msgspec.structs.replace(piece, ticket=ask.ticket))
        self._check_log_asks()

    def _check_log_asks(self) -> None:
        """Answer those for whom no worker is left that could know."""
        for number, ask in list(self._log_asks.items()):
            if ask.unheard.isdisjoint(self._workers):
                del self._log_asks[number]
                piece = control.LogPiece(
                    ticket=ask.ticket, text="", offset=0, known=False, ended=True
                )
                self._tell(ask.session, piece)

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
                    memory=register.memory,
                    free_cpus=free.cpus,
                    free_gpus=int(free.gpus),
                    free_memory=free.memory,
                    actors=list(machine.reports.values()),
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

    # --- placing ----------------------------------------------------------------------------------

    def _place(self, who: str, place: control.Place, now: float) -> None:
        actor = place.request.actor
        record = self._actors.get(actor)
        if record is not None and record.request.life == place.request.life:  # asked again
            record.watchers.add(who)
            if record.location is None:
                record.asker = who, place.ticket
            else:
                self._tell(who, control.Placed(ticket=place.ticket, location=record.location))
            return
        self._waiting = [w for w in self._waiting if w.place.request.actor != actor]
        if not self._try(who, place):
            deadline = now + place.patience_s
            self._waiting.append(Waiter(who, place, deadline))
            why = self._why_waiting(place.request)
            self._tell(who, control.Waiting(ticket=place.ticket, why=why))

    def _try(self, who: str, place: control.Place) -> bool:
        """Place it or refuse it; false if it has to wait."""
        request = place.request
        holder = self._actors.get(self._names.get(request.name, ""))
        both_named = request.named and holder is not None and holder.request.named
        if both_named and self._names[request.name] != request.actor:
            why = f"an actor named {request.name!r} is on this cluster already"
            self._refuse(who, place.ticket, "NameTaken", why)
            return True
        if not self._workers or self._closing:
            return False
        asked = Resources(request.cpus, request.gpus, request.memory)
        match self._ledger.place(asked, request.python):
            case Placement(worker=worker, gpu_ids=gpu_ids):
                gpus = list(gpu_ids)
                self._actors[request.actor] = Record(
                    request, worker, gpus, asker=(who, place.ticket), watchers={who}
                )
                self._name(request)
                self._deaths.pop(request.actor, None)
                self._tell(worker, control.Spawn(request=request, gpu_ids=gpus))
            case Never(reason=why):
                pythons = {w.register.python for w in self._workers.values()}
                error = "NoResources" if request.python in pythons else "VersionMismatch"
                self._refuse(who, place.ticket, error, why)
            case Wait():
                return False
        return True

    def _name(self, request: control.Request) -> None:
        """Two scripts may each have a Counter-1; the name then means that of the first."""
        if request.named or request.name not in self._names:
            self._names[request.name] = request.actor

    def _refuse(self, who: str, ticket: int, error: str, why: str) -> None:
        self._tell(who, control.NotPlaced(ticket=ticket, error=error, why=why))

    def _why_waiting(self, request: control.Request) -> str:
        if not self._workers:
            return "no machine has joined the cluster"
        free = [self._ledger.free(name) for name in self._workers]
        return (
            f"{request.class_name} asks for {request.cpus:g} CPUs, {request.gpus} GPUs and "
            f"{request.memory / 2**30:.3g} GiB; the most that a machine has free is "
            f"{max(f.cpus for f in free):g} CPUs, {max(f.gpus for f in free):g} GPUs and "
            f"{max(f.memory for f in free) / 2**30:.3g} GiB"
        )

    def _retry(self) -> None:
        self._waiting = [w for w in self._waiting if not self._try(w.session, w.place)]

    def _end_actor(self, actor: str, grace_s: float) -> None:
        if record := self._actors.get(actor):
            self._tell(record.worker, control.End(actor=actor, grace_s=grace_s))
        self._waiting = [w for w in self._waiting if w.place.request.actor != actor]

    def _locate(self, who: str, ask: control.Locate) -> None:
        actor = ask.actor or self._names.get(ask.name, "")
        record = self._actors.get(actor)
        if record is not None:
            record.watchers.add(who)
        self._tell(
            who,
            control.Located(
                ticket=ask.ticket,
                location=record.location if record else None,
                obituary=self._deaths.get(actor),
            ),
        )

    # --- workers ----------------------------------------------------------------------------------

    def enlist(self, register: control.Register, now: float) -> bool:
        """Take in a worker; true if it is new.  `settle` is to follow."""
        name = register.worker
        new = name not in self._workers
        if new:
            machine = self._workers[name] = Machine(register)
            size = Resources(register.cpus, register.gpus, register.memory)
            self._ledger.add_worker(name, size, register.python)
            for status in register.actors:
                self._relearn(name, status, now)
                machine.reports[status.location.actor] = status
        self.renew(name, now)
        self._tell(name, control.Registered(client_keys=self._client_keys))
        return new

    def settle(self, register: control.Register) -> None:
        """Make right what was lost on the way while a worker's connection was broken."""
        name = register.worker
        self._reconcile(name, {status.location.actor: status for status in register.actors})
        for status in register.actors:  # it was silent for so long that they were given up
            if status.location.actor not in self._actors:
                end = control.End(actor=status.location.actor, grace_s=OWNER_GRACE_S)
                self._tell(name, end)
        modules = {m for s in self._sessions.values() for m in s.hello.modules}
        if modules:
            self._tell(name, control.Preload(modules=sorted(modules)))
        self._retry()

    def _reconcile(self, name: str, living: dict[str, control.ActorStatus]) -> None:
        for actor, record in list(self._actors.items()):
            if record.worker != name:
                continue
            if record.location is None and actor in living:
                self._spawned(name, living[actor].location, living[actor].since)
            elif record.location is None:  # it ignores this if it is about to be born
                spawn = control.Spawn(request=record.request, gpu_ids=record.gpu_ids)
                self._tell(name, spawn)
            elif actor not in living:
                self._forget(control.Obituary(actor=actor, life=record.request.life, lost=True))

    def _relearn(self, worker: str, status: control.ActorStatus, now: float) -> None:
        request = status.request
        if request.actor in self._deaths:
            return
        asked = Resources(request.cpus, request.gpus, request.memory)
        self._ledger.reserve(worker, asked, tuple(status.gpu_ids))
        self._actors[request.actor] = Record(
            request, worker, status.gpu_ids, status.location, watchers={request.owner}
        )
        self._name(request)
        if request.owner and request.owner not in self._sessions:
            self.renew(request.owner, now)

    def hear_worker(self, who: str, message: object, now: float) -> None:
        self.renew(who, now)
        match message:
            case control.Spawned(location=location, since=since):
                self._spawned(who, location, since)
            case control.Died(obituary=obituary):
                self._forget(obituary)
            case control.Report(actors=actors):
                self._workers[who].reports = {a.location.actor: a for a in actors}
            case control.Output(job=job):
                self._tell(job, message)
            case control.LogPiece():
                self._pass_log(who, message)
            case control.Left():
                self.remove_worker(who, "its worker was stopped")

    def _spawned(self, worker: str, location: control.Location, since: float) -> None:
        record = self._actors.get(location.actor)
        if record is None:
            return
        record.location = location
        self._workers[worker].reports[location.actor] = control.ActorStatus(
            location=location, request=record.request, gpu_ids=record.gpu_ids, since=since
        )
        if record.asker:
            session, ticket = record.asker
            record.asker = None
            self._tell(session, control.Placed(ticket=ticket, location=location))
            if session not in self._sessions:  # it went while we were placing
                self._end_actor(location.actor, OWNER_GRACE_S)

    def remove_worker(self, name: str, why: str) -> None:
        """A worker has ended, and its actors with it."""
        if self._workers.pop(name, None) is None:
            return
        self._leases.end(name)
        self._let_go(name)
        for actor, record in list(self._actors.items()):
            if record.worker == name:
                life = record.request.life
                self._forget(control.Obituary(actor=actor, life=life, lost=True, why=why))
        self._ledger.remove_worker(name)
        self._check_log_asks()

    def _forget(self, obituary: control.Obituary) -> None:
        """An actor has ended: free what it held, tell who watched, end what it owned."""
        record = self._actors.get(obituary.actor)
        if record is None or record.request.life != obituary.life:
            return
        del self._actors[obituary.actor]
        if self._names.get(record.request.name) == obituary.actor:
            del self._names[record.request.name]
        if machine := self._workers.get(record.worker):
            machine.reports.pop(obituary.actor, None)
            asked = Resources(record.request.cpus, record.request.gpus, record.request.memory)
            self._ledger.release(record.worker, asked, tuple(record.gpu_ids))
        self._deaths[obituary.actor] = obituary
        while len(self._deaths) > REMEMBERED_DEATHS:
            self._deaths.popitem(last=False)
        if record.asker:
            session, ticket = record.asker
            error, why = "WorkerLost", obituary.why
            if not obituary.lost:
                error = "ActorDied"
                why = f"its process ended at birth ({obituary.exit}): {why} {obituary.stderr}"
            self._refuse(session, ticket, error, why)
        for session in record.watchers:
            self._tell(session, control.Died(obituary=obituary))
        for name, found in list(self._sessions.items()):
            if found.hello.actor == obituary.actor:
                self.end_session(name)
        self._say_farewell(record.request.owner)
        self._retry()
