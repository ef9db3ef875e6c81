"""A cluster for the tests of the master: its core, and peers and a shell that a loop plays."""

import itertools
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import msgspec

from remotely.master.admission import Admission
from remotely.master.core import Core
from remotely.master.state import Instruction, LetGo, Log, Probe, State, Tell
from remotely.master.waiting import WaitingList
from remotely.protocol import control
from remotely.protocol.resources import Resources, parse_others

PYTHON = "3.11"
GIB = 1 << 30
LEASE_S = 10.0
KEY = b"a client's key, listed".ljust(40)
SECRET = b"the master's"

Said = TypeVar("Said")


class Cluster:
    """A core, its shell as a loop plays it, and peers that say what a test has them say."""

    def __init__(self, waiting: type[WaitingList] = WaitingList) -> None:
        self.now = 0.0
        self.said: list[tuple[str, msgspec.Struct]] = []
        self.to_spawn: list[tuple[str, control.Spawn]] = []
        self.living: dict[str, dict[str, control.ActorStatus]] = {}  # by worker and actor
        self.births: dict[str, list[control.Spawn]] = {}  # that a worker is about
        self.tickets = itertools.count(1)
        self.waiting = waiting
        self.cut_off: set[str] = set()  # peers to which nothing can be sent
        self.gone: list[str] = []
        self.starts_master()

    def starts_master(self, counts_cpus: bool = True) -> None:
        """Put a master that knows nobody in the place of the one there is."""
        self.admission = Admission([KEY], [], SECRET)
        self.core = Core(self.admission, LEASE_S, counts_cpus=counts_cpus)
        self.core.state.waiting = self.waiting()

    @property
    def state(self) -> State:
        return self.core.state

    def do(self, instructions: Iterable[Instruction]) -> list[str]:
        """Do as the shell does; return what it logs."""
        left, logged = deque(instructions), []
        while left:
            match left.popleft():
                case Tell(who=who, message=message) if who not in self.cut_off:
                    self.said.append((who, message))
                    if isinstance(message, control.Spawn):
                        self.to_spawn.append((who, message))
                case Tell(who=who):
                    left.extend(self.core.lose_route(who, self.now))
                case Probe(worker=worker, asker=asker, question=question):
                    if worker in self.cut_off:
                        left.extend(self.core.lose_route(worker, self.now))
                    left.extend(self.core.locate(asker, question))
                case Log(sentence=sentence):
                    logged.append(sentence)
                case LetGo(who=who):
                    self.gone.append(who)
        return logged

    def told(self, kind: type[Said]) -> list[tuple[str, Said]]:
        """Return what was said of this kind since the last time, and to whom."""
        found: list[tuple[str, Said]] = []
        found += [(who, said) for who, said in self.said if isinstance(said, kind)]
        self.said.clear()
        return found

    # --- clients ----------------------------------------------------------------------------------

    def hello(self, who: str, modules: Iterable[str] = (), actor: str = "") -> None:
        hello = control.Hello(
            session=who,
            python=PYTHON,
            pid=1,
            host="",
            machine="",
            actor=actor,
            modules=list(modules),
        )
        self.do(self.core.greet(hello, KEY, self.now))

    def says(self, who: str, message: msgspec.Struct) -> None:
        hear = self.core.hear_worker if who in self.living else self.core.hear_client
        self.do(hear(who, message, self.now))

    def asks(self, who: str, actor: str, **wishes: Any) -> int:
        """Ask for an actor; return the ticket."""
        request = request_of(actor, who, **wishes)
        place = control.Place(ticket=next(self.tickets), request=request, patience_s=60)
        self.says(who, place)
        return place.ticket

    def has(self, who: str, actor: str, **wishes: Any) -> None:
        self.asks(who, actor, **wishes)
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
        **others: float,
    ) -> None:
        """Join, or be back, with what lives there."""
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
        )
        self.do(self.core.enlist(register, self.now, predecessors=predecessors))
        self.do(self.core.settle(register))

    def loses(self, worker: str, may_return: bool = False) -> None:
        """Lose a worker, with its actors."""
        self.do(self.core.remove_worker(worker, "lost", self.now, may_return))

    def loses_route(self, worker: str) -> None:
        self.do(self.core.lose_route(worker, self.now))

    def loses_client(self, who: str) -> None:
        self.do(self.core.end_session(who, self.now))

    def learns(self) -> None:
        """Workers may come back, as to a new master, for a lease from now on."""
        self.state.learns_until = self.now + LEASE_S

    def expires(self) -> list[str]:
        """Have the core look at the clock; return what it logs."""
        return self.do(self.core.expire(self.now))

    def passes(self, seconds: float = 0.0, but: Iterable[str] = ()) -> list[str]:
        """Let time pass, in which all but these peers give proof of their lives."""
        self.now += seconds
        for who in (*self.core.workers, *(s.hello.session for s in self.state.sessions)):
            if who not in but:
                self.core.renew(who, self.now)
        return self.expires()

    def spawns(self, at_most: int = 1000) -> list[str]:
        """Have the workers do what they were told; return whom they brought to life, in order."""
        told, self.to_spawn = self.to_spawn[:at_most], self.to_spawn[at_most:]
        for worker, spawn in told:
            if worker in self.core.workers:
                status = status_of(spawn.request, spawn.gpu_ids, spawn.seal)
                self.living[worker][spawn.request.actor] = status
                self.says(worker, control.Spawned(location=status.location))
        return [spawn.request.actor for _, spawn in told]

    def houses(self, worker: str, requests: Iterable[control.Request]) -> None:
        """Have actors live there that an earlier master has placed."""
        seal = Admission([], [], SECRET).seals.seal
        self.living[worker] = {r.actor: status_of(r, (), seal(worker, r, [])) for r in requests}

    def buries(self, actor: str) -> None:
        for worker, living in self.living.items():
            if actor in living and worker in self.core.workers:
                life = living.pop(actor).request.life
                self.says(worker, control.Died(obituary=control.Obituary(actor=actor, life=life)))
                return


def request_of(actor: str, who: str, **wishes: Any) -> control.Request:
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
            wishes.pop("cpus", 1),
            wishes.pop("gpus", 0),
            wishes.pop("memory", 0),
            parse_others(wishes.pop("others", {})),
        ),
        **wishes,
    }
    return control.Request(**fields)


def status_of(
    request: control.Request, gpu_ids: Iterable[int] = (), seal: bytes = b""
) -> control.ActorStatus:
    location = control.Location(
        actor=request.actor,
        name=request.name,
        class_name=request.class_name,
        life=request.life,
        pid=1,
        host="",
        machine="",
        ipc="",
        tcp="",
        public_key=b"",
    )
    return control.ActorStatus(location=location, request=request, gpu_ids=list(gpu_ids), seal=seal)
