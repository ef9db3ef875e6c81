"""A simulated cluster for tests of the master: its core, a shell without I/O, and peers."""

import itertools
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import msgspec

from remotely.master import lending
from remotely.master.admission import LIST, Admission
from remotely.master.core import Core
from remotely.master.state import Forget, Instruction, Log, RouteProbe, Send, State
from remotely.master.waiting import WaitingList, gang_of
from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.protocol.resources import Resources, parse_others

PYTHON = "3.11"
GIB = 1 << 30
LEASE_S = 10.0
KEY, WORKER_KEY = b"a client's key, listed".ljust(40), b"a worker's key, listed".ljust(40)
SECRET = b"the master's"

Sent = TypeVar("Sent")


class Cluster:
    """A core, and simulated peers that send what the test tells them to."""

    def __init__(self, waiting: type[WaitingList] = WaitingList) -> None:
        self.now = 0.0
        self.outbox: list[tuple[str, msgspec.Struct]] = []  # messages of the master
        self.to_spawn: list[tuple[str, control.Spawn]] = []
        self.living: dict[str, dict[str, control.ActorStatus]] = {}  # by worker and actor
        self.births: dict[str, list[control.Spawn]] = {}  # actors that a worker is starting
        self.tickets = itertools.count(1)
        self.waiting = waiting
        self.cut_off: set[str] = set()  # peers to which nothing can be sent
        self.forgotten: list[str] = []
        self.starts_master()

    def starts_master(self, counts_cpus: bool = True, recovers_until: float = 0.0) -> None:
        """Replace the master by a new one without state."""
        self.admission = Admission([KEY], [WORKER_KEY], SECRET)
        self.core = Core(self.admission, LEASE_S, recovers_until, counts_cpus=counts_cpus)
        self.core.state.waiting = self.waiting()

    @property
    def state(self) -> State:
        return self.core.state

    def execute(self, instructions: Iterable[Instruction]) -> list[str]:
        """Carry out instructions like the shell; return the lines that it logs."""
        left, logged = deque(instructions), []
        while left:
            match left.popleft():
                case Send(peer=who, message=message) if who not in self.cut_off:
                    self.outbox.append((who, message))
                    if isinstance(message, control.Spawn):
                        self.to_spawn.append((who, message))
                case Send(peer=who):
                    left.extend(self.core.lose_route(who, self.now))
                case RouteProbe(worker=worker, client=client, request=request):
                    if worker in self.cut_off:
                        left.extend(self.core.lose_route(worker, self.now))
                    left.extend(self.core.locate(client, request))
                case Log(line=line):
                    logged.append(line)
                case Forget(peer=who):
                    self.forgotten.append(who)
        return logged

    def sent(self, kind: type[Sent]) -> list[tuple[str, Sent]]:
        """Empty the outbox; return the receivers and messages of this kind."""
        found: list[tuple[str, Sent]] = []
        found += [(who, message) for who, message in self.outbox if isinstance(message, kind)]
        self.outbox.clear()
        return found

    # --- clients ----------------------------------------------------------------------------------

    def hello(
        self,
        who: str,
        modules: Iterable[str] = (),
        actor: str = "",
        arrivals: Iterable[str] = (),
    ) -> None:
        hello = control.Hello(
            session=who,
            python=PYTHON,
            pid=1,
            host="",
            machine="",
            actor=actor,
            modules=list(modules),
            arrivals=list(arrivals),
        )
        self.execute(self.core.greet(hello, KEY, self.now))

    def says(self, who: str, message: msgspec.Struct) -> None:
        handle = self.core.handle_worker if who in self.living else self.core.handle_client
        self.execute(handle(who, message, self.now))

    def asks(self, who: str, actor: str, **options: Any) -> int:
        """Request an actor; return the ticket."""
        patience_s = options.pop("patience_s", 60.0)
        request = request_of(actor, who, **options)
        place = control.Place(ticket=next(self.tickets), request=request, patience_s=patience_s)
        self.says(who, place)
        return place.ticket

    def has(self, who: str, actor: str, **options: Any) -> None:
        self.asks(who, actor, **options)
        assert self.spawns() == [actor]

    # --- workers ----------------------------------------------------------------------------------

    def joins(
        self,
        worker: str,
        cpus: float = 2,
        gpus: int = 0,
        python: str = PYTHON,
        machine: str = "",
        predecessors: Collection[str] = (),
        drains_s: float = 0.0,
        must_leave: bool = False,
        confirms: bool = True,
        **others: float,
    ) -> None:
        """Register a worker, with the actors that live there.  `confirms`: the list of keys."""
        self.cut_off.discard(worker)
        register = control.Register(
            worker=worker,
            python=python,
            host=machine,
            machine=machine,
            address=f"{machine or worker}.example",
            pid=1,
            resources=Resources(cpus, gpus, 8 * GIB, parse_others(others)),
            actors=list(self.living.setdefault(worker, {}).values()),
            births=self.births.get(worker, []),
            drains_s=drains_s,
            must_leave=must_leave,
        )
        self.execute(self.core.register_worker(register, self.now, predecessors=predecessors))
        self.execute(self.core.reconcile_worker(register))
        if confirms:
            self.says(worker, control.CallerHeard(key=LIST))

    def drains(self, machine: str, within_s: float = 600.0, undo: bool = False) -> int:
        """Let the client ask for a machine to be drained; return the ticket."""
        ask = control.Drain(
            within_s=within_s, ticket=next(self.tickets), machine=machine, undo=undo
        )
        self.says("client", ask)
        return ask.ticket

    def leaves(self, worker: str) -> None:
        """Let a worker leave with its actors."""
        self.says(worker, control.Left())

    def moves_out(self, actor: str) -> None:
        """Let an actor end that was told to move, after its calls."""
        for worker, living in self.living.items():
            if actor in living and worker in self.core.workers:
                status = living.pop(actor)
                obituary = control.Obituary(
                    actor=actor, life=status.request.life, moved=True, exited=True
                )
                self.says(worker, control.Died(obituary=obituary, lived=status))
                return

    def loses(self, worker: str, may_return: bool = False) -> None:
        """Remove a worker with its actors."""
        self.execute(self.core.remove_worker(worker, "lost", self.now, may_return))

    def loses_route(self, worker: str) -> None:
        self.execute(self.core.lose_route(worker, self.now))

    def loses_client(self, who: str) -> None:
        self.execute(self.core.end_session(who, self.now))

    def recovers(self) -> None:
        """Let the master recover, as after a restart, for one lease."""
        self.state.recovers_until = self.now + LEASE_S

    def expire(self) -> list[str]:
        """Run the tick of the core; return the lines that it logs."""
        return self.execute(self.core.expire(self.now))

    def advance(self, seconds: float = 0.0, but: Iterable[str] = ()) -> list[str]:
        """Let time pass, in which all peers but these renew their leases."""
        self.now += seconds
        for who in (*self.core.workers, *(s.hello.session for s in self.state.sessions)):
            if who not in but:
                self.core.renew(who, self.now)
        return self.expire()

    def spawns(self, at_most: int = 1000) -> list[str]:
        """Let the workers start the actors; return these, in order."""
        spawns, self.to_spawn = self.to_spawn[:at_most], self.to_spawn[at_most:]
        for worker, spawn in spawns:
            if worker in self.core.workers:
                machine = self.core.state.workers.records[worker].register.machine
                status = status_of(spawn.request, spawn.gpu_ids, spawn.seal, machine)
                self.living[worker][spawn.request.actor] = status
                self.says(worker, control.Spawned(location=status.location))
        return [spawn.request.actor for _, spawn in spawns]

    def fails(self, actor: str = "", why: str = "no space left") -> str:
        """Let the worker of this actor, or of the first, fail to start it; return the actor."""
        number = next(n for n, (_, s) in enumerate(self.to_spawn) if actor in ("", s.request.actor))
        worker, spawn = self.to_spawn.pop(number)
        request = spawn.request
        if worker in self.core.workers:
            obituary = control.Obituary(
                actor=request.actor, life=request.life, unstarted=True, why=why
            )
            self.says(worker, control.Died(obituary=obituary))
        return request.actor

    def hosts(self, worker: str, requests: Iterable[control.Request]) -> None:
        """Give a worker actors that an earlier master has placed."""
        seal = Admission([], [], SECRET).seals.seal
        self.living[worker] = {r.actor: status_of(r, (), seal(worker, r, [])) for r in requests}

    def kills(self, actor: str) -> None:
        for worker, living in self.living.items():
            if actor in living and worker in self.core.workers:
                life = living.pop(actor).request.life
                self.says(worker, control.Died(obituary=control.Obituary(actor=actor, life=life)))
                return


def request_of(actor: str, who: str, **options: Any) -> control.Request:
    fields: dict[str, Any] = {
        "actor": actor,
        "name": actor,
        "class_name": "Counter",
        "owner": who,
        "maker": who,
        "job": who,
        "python": PYTHON,
        "key": KEY,
        "resources": Resources(
            options.pop("cpus", 1),
            options.pop("gpus", 0),
            options.pop("memory", 0),
            parse_others(options.pop("others", {})),
        ),
        **options,
    }
    return control.Request(**fields)


def status_of(
    request: control.Request, gpu_ids: Iterable[int] = (), seal: bytes = b"", machine: str = ""
) -> control.ActorStatus:
    location = control.Location(
        actor=request.actor,
        name=request.name,
        class_name=request.class_name,
        life=request.life,
        pid=1,
        host="",
        machine=machine,
        ipc="",
        tcp="",
        public_key=b"",
    )
    return control.ActorStatus(location=location, request=request, gpu_ids=list(gpu_ids), seal=seal)


def workers_in_status(cluster: Cluster) -> list[control.WorkerStatus]:
    cluster.says("client", control.AskStatus(ticket=1, fresh=False))
    ((_, status),) = cluster.sent(control.Status)
    return status.workers


# --- random events --------------------------------------------------------------------------------


def play_event(cluster: Cluster, event: str, a: int, b: int) -> None:
    """Cause one event, of those that a master may encounter."""
    who, worker, actor = f"client-{a % 3}", f"worker-{a % 4}", f"actor-{b % 8}"
    match event:
        case "hello":
            modules = [[], ["numpy"], ["numpy", "torch"]][b % 3]
            cluster.hello(who, modules, actor if b % 4 == 0 and a % 3 else "")
        case "join":
            python = [PYTHON, PYTHON, "3.10"][b % 3]
            size, machine = [2, 1, 4, 2.5][a % 4], "ab"[a % 2]
            before = [f"worker-{b % 4}"] if a % 4 != b % 4 and a % 3 == 0 else []
            cluster.joins(worker, size, a % 2, python, machine, before, license=b % 2)
        case "forget" if worker in cluster.living:  # an end that is not reported
            cluster.living[worker].pop(actor, None)
        case "lose":
            cluster.loses(worker, may_return=b % 2 == 0)
        case "cut off":
            cluster.cut_off.add(worker)
            if b % 2:
                cluster.loses_route(worker)
        case "spawn":
            cluster.spawns(at_most=1)
        case "fail" if cluster.to_spawn:
            cluster.fails()
        case "drain":
            ask = control.Drain(within_s=60, ticket=1, machine="ab"[a % 2], undo=b % 3 == 0)
            if cluster.state.sessions.get(who):
                cluster.says(who, ask)
        case "leave" if worker in cluster.core.workers:
            if b % 2:
                cluster.says(worker, control.Leaving(within_s=10))
            else:
                cluster.leaves(worker)
        case "move out":
            record = cluster.state.actors.records.get(actor)
            if record is not None and record.is_moving:
                cluster.moves_out(actor)
        case "stay":
            for name in cluster.core.workers:  # only that of the actor may say so
                cluster.says(name, control.Stay(actor=actor))
        case "begin":  # the constructor of a next life
            for name in cluster.core.workers:
                cluster.says(name, control.Begun(actor=actor))
        case "die":
            cluster.kills(actor)
        case "wait":
            cluster.now += a % 7
            cluster.expire()
        case "tick":  # no peer is lost
            cluster.advance(3)
        case "end session":
            cluster.loses_client(who)
        case "new master" if a % 5 == 0:
            cluster.starts_master()
        case "delegate":
            key = f"key-{b % 8}".encode().ljust(40)
            for name in cluster.core.workers:  # only that of the actor may do this
                cluster.says(name, control.Delegate(actor=actor, key=key))
            if worker in cluster.core.workers:
                cluster.says(worker, control.MayCall(key=key))
        case "fail" | "leave":
            pass
        case _ if not (session := cluster.state.sessions.get(who)) or session.hello.actor == actor:
            pass  # a client in an actor does not request that actor
        case "place":
            cluster.asks(
                who,
                actor,
                cpus=[0.5, 1, 2, 4][a % 4],
                gpus=[1, 0, 0.4, 0, 0][b % 5],
                others={"license": 0.5} if a % 5 == 1 else {},
                machine="abc"[b % 3] if a % 7 == 3 else "",
                near=f"actor-{a % 8}" if a % 7 == 4 else "",
                gang=f"gang-{b % 2}" if a % 3 == 2 else "",
                together=2 + b % 2 if a % 3 == 2 else 1,
                owner=who if b % 3 else "",
                max_restarts=[0, 2][a % 2],
                name="store" if a % 2 else actor,
                named=b % 2 == 0,
                life=int(a % 6 == 0),
                is_spare=a % 4 == 1,
            )
        case "end":
            cluster.says(who, control.End(actor=actor, grace_s=0))
        case "locate":
            by_id, by_name = (actor, "") if a % 2 else ("", actor)
            locate = control.Locate(ticket=1, actor=by_id, name=by_name, unreached=b % 3 == 0)
            cluster.says(who, locate)
        case "read a log":
            cluster.says(who, control.ReadLog(ticket=1, actor=actor))
        case "goodbye":
            cluster.says(who, control.Goodbye())
        case "block" if cluster.state.sessions[who].hello.actor:
            target = f"actor-{a % 8}"
            blocked = control.Blocked(
                wait=1 + a % 2, actor=target, call="f", has_timeout=a % 5 == 0
            )
            cluster.says(who, blocked)
        case "hold":
            cluster.says(who, control.Hold(actor=actor))
        case "let go":
            cluster.says(who, control.LetGo(actor=actor))
        case "unblock":
            cluster.says(who, control.Unblocked())


EVENTS = [
    *["place"] * 6,
    *["spawn"] * 4,
    *["join", "die", "hello", "tick"] * 3,
    *[
        *["fail"] * 2,
        *["move out"] * 4,
        "stay",
        "drain",
        "leave",
        "begin",
        "forget",
        "lose",
        "cut off",
        "wait",
        "end session",
        "new master",
        "end",
        "locate",
        "read a log",
    ],
    "goodbye",
    "delegate",
    *["block", "block", "unblock", "hold", "hold", "let go"],
]


# --- invariants -----------------------------------------------------------------------------------


def check(cluster: Cluster) -> None:
    """Compare all indexes with a linear search."""
    state, table = cluster.state, cluster.state.actors
    records, sessions = list(table.records.items()), list(state.sessions)
    assert held_by(table.by_owner) == by((r.request.owner, a) for a, r in records)
    assert held_by(table.by_worker) == by((r.worker, a) for a, r in records)
    assert held_by(table.starting) == by(
        (r.worker, a) for a, r in records if not r.location and not r.has_begun
    )
    assert held_by(table.by_lender) == by((r.lender, a) for a, r in records if r.lender)
    assert held_by(table.spare_of) == by(
        (r.request.owner, a) for a, r in records if r.request.is_spare
    )
    assert held_by(table.held_by) == by(
        (holder, a) for a in table.holders for holder in table.holders.of(a)
    )
    for holder in table.held_by:
        assert holder in state.sessions
        assert not state.sessions[holder].leaving
    for actor, record in records:
        assert record.request.owner not in table.holders.of(actor) or not record.request.owner
        assert record.lends == (record.request.resources.cpus > 0 and lending.waits(state, actor))
    assert held_by(table.by_gang) == by((r.request.gang, a) for a, r in records if r.request.gang)
    assert held_by(table.by_watcher) == by((w, a) for a, r in records for w in r.watchers)
    assert held_by(state.sessions.inside) == by(
        (session.hello.actor, session.hello.session) for session in sessions if session.hello.actor
    )
    assert held_by(state.sessions.using) == by(
        ((PYTHON, module), session.hello.session)
        for session in sessions
        for module in session.modules
    )
    assert {r.worker for _, r in records} <= set(cluster.core.workers)
    assert not table.records.keys() & table.deaths.keys()
    for actor, pending in state.restarts.pending.items():  # somebody requests, or has requested it
        is_expected = pending.request.maker in state.leases
        assert is_expected or actor in table.records or actor in state.waiting, actor
    for name, actor in table.names.items():
        assert (state.restarts.pending.get(actor) or table.records[actor]).request.name == name
    ledger = state.workers.ledger
    for worker, machine in state.workers.records.items():
        here = [lending.held(r) for _, r in records if r.worker == worker]
        kept = [asked for placement, asked in ledger.reserved if placement.worker == worker]
        free = machine.register.resources - sum([*here, *kept], Resources())
        assert ledger.free(worker).cpus == free.cpus
        assert ledger.free(worker).memory == free.memory
        assert ledger.actors(worker) == len(here)
    for worker in state.workers.draining:
        assert worker in state.workers.records
        assert not ledger.is_open(worker)
    assert state.workers.must_leave <= state.workers.draining.keys()
    assert not state.workers.undone & state.workers.draining.keys()
    for worker, sick in state.workers.sick.items():
        assert worker in state.workers.records
        assert not (sick.pause_s and state.now < sick.until and ledger.is_open(worker))
    check_callers(cluster)
    check_waiting(cluster)


def check_callers(cluster: Cluster) -> None:
    admission = cluster.admission
    for actor in admission.delegates:
        record = cluster.state.actors.records[actor]
        assert record.location is not None
        assert admission.is_listed(record.request.key)
    assert {worker for key in admission.informed for worker in admission.informed.of(key)} <= set(
        cluster.core.workers
    )
    assert set(admission.informed) <= set(admission.delegates.values())


def check_waiting(cluster: Cluster) -> None:
    state, waiting = cluster.state, cluster.state.waiting
    waiters = list(waiting)
    assert [w.number for w in waiters] == sorted(w.number for w in waiters)
    assert len(waiting) == len(waiters)
    firsts = [waiter.number for waiter in waiting.firsts()]
    assert firsts == sorted(firsts)
    assert bool(firsts) == any(not waiting.is_set_aside(w.request.actor) for w in waiters)
    for name in {w.request.name for w in waiters}:
        named = {w.number for w in waiters if w.request.named and w.request.name == name}
        assert {w.number for w in waiting.for_name(name)} == named
    assert not {w.request.actor for w in waiters} & state.actors.records.keys()
    nears = {w.request.near for w in waiters}
    assert all(waiting.any_near(f"actor-{n}") == (f"actor-{n}" in nears) for n in range(8))
    for waiter in waiters:
        assert waiter.session in state.sessions
        asked, python = needs_of(waiter.request)
        if waiter.request.named and state.actors.ending(waiter.request.name):
            continue  # it waits for its name
        count = 1
        if gang := gang_of(waiter.request):
            members = [w for w in waiters if gang_of(w.request) == gang]
            assert waiting.gang(gang) == members
            count = len(members)
            if len({needs_of(w.request) for w in members}) > 1:
                continue  # no client asks for such a gang
            if count + state.actors.by_gang.count(gang) < waiter.request.together:
                continue
        ledger, among = state.workers.ledger, state.workers_for(waiter.request)
        assert ledger.copies(asked, python, count, among) < count
        assert not cluster.core.workers or ledger.why_never(asked, python) is None


def needs_of(request: control.Request) -> tuple[Resources, str]:
    return request.resources, request.python


def held_by(index: Index[Any, Any]) -> dict[Any, set[Any]]:
    return {key: set(index.of(key)) for key in index}


def by(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, set[Any]]:
    found: dict[Any, set[Any]] = {}
    for key, item in pairs:
        found.setdefault(key, set()).add(item)
    return found
