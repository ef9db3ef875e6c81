"""The work of the master, and how it grows with the cluster.

    python -m tools.bench.master [--workers 1000] [--actors 20000] [--sockets] [--json FILE]
    python -m tools.bench.master --large [--workers 10000] [--actors 100000]

A real core receives bytes: each message is decoded and handled, and its replies are encoded.
Figures are microseconds of one CPU core per event, without sockets, on clusters of 1 %, 10 % and
100 % of the workers and actors.

--large simulates one cluster: the master restarts and its workers return; actors are placed; a
tenth of the workers is lost at once, and its actors are placed again.

--sockets measures a real master process with as many CURVE connections from workers that send beats
and reports.  Its share of a core is the kernel's, with libzmq's thread; the latency of a placement
is a client's.
"""

import contextlib
import gc
import itertools
import json
import multiprocessing
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import zmq

from remotely.machine import daemons, this_machine
from remotely.master.admission import Admission
from remotely.master.core import Core
from remotely.master.master import GC_THRESHOLD
from remotely.master.state import Instruction, Send
from remotely.protocol import control
from remotely.protocol.configs import MasterConfig
from remotely.protocol.ids import bound_id
from remotely.protocol.lease import BEAT_EVERY_S, LEASE_S, TICK_EVERY_S
from remotely.protocol.resources import Resources
from remotely.transport import sockets
from remotely.transport.keys import MasterKey, MemberKey, fresh_keys
from remotely.transport.sockets import Reconnect
from tools import command_line
from tools.bench.stopwatch import free_port

SIZES = (0.01, 0.1, 1.0)  # shares of the workers and actors
ROOM = 0.5  # a worker's CPUs that its actors leave free
WAITERS = 1000
SAMPLES = 200  # at most, events of a figure
REST_S = 10.0
SETTLE_S = 3.0

Said = TypeVar("Said")

KEY = b"k" * 40
ADMISSION = Admission([KEY], [], b"the master's secret")


class Cluster:
    """A core and its simulated peers; each worker's actors belong to one client."""

    def __init__(self, workers: int, actors: int, owner: str = "") -> None:
        self.spent_s = 0.0  # this process's CPU time
        self.now = 0.0
        self.said: list[tuple[str, msgspec.Struct]] = []
        self._decoders = {
            role: control.Decoder(f"{role} > master") for role in ("client", "worker", "viewer")
        }
        self.core = Core(ADMISSION, LEASE_S)
        self.workers = [f"{number:016x}" for number in range(workers)]
        self.clients = [f"{number:032x}" for number in range(workers)]
        self.tickets = itertools.count(1)
        self.registers = [
            register(
                name, [status(n, w, owner or self.clients[w]) for n in range(actors // workers)]
            )
            for w, name in enumerate(self.workers)
        ]

    def hear(self, role: str, who: str, *messages: msgspec.Struct) -> None:
        """Give the master messages, and count its time."""
        for message in messages:
            data = control.encode(message)
            begin = time.process_time()
            match self._decoders[role].decode(data):
                case control.Hello() as hello:
                    self._do(self.core.greet(hello, KEY, self.now))
                case control.Register() as found:
                    self._do(self.core.register_worker(found, self.now))
                    self._do(self.core.reconcile_worker(found))
                case heard if role == "client":
                    self._do(self.core.handle_client(who, heard, self.now))
                case heard:
                    self._do(self.core.handle_worker(who, heard, self.now))
            self.spent_s += time.process_time() - begin

    def time(self, action: Callable[[], list[Instruction]]) -> None:
        """Count the time of an action of the master's own."""
        begin = time.process_time()
        self._do(action())
        self.spent_s += time.process_time() - begin

    def took_us(self, events: int) -> float:
        """Return the microseconds per event since the last figure."""
        spent_s, self.spent_s = self.spent_s, 0.0
        self.said.clear()
        gc.collect()  # not counted
        return spent_s / events * 1e6

    def taken(self, kind: type[Said]) -> list[tuple[str, Said]]:
        """Return the messages of this kind, and forget all."""
        found: list[tuple[str, Said]] = []
        found += [(who, said) for who, said in self.said if isinstance(said, kind)]
        self.said.clear()
        return found

    def _do(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Send):
                control.encode(each.message)
                self.said.append((each.peer, each.message))

    # --- events -----------------------------------------------------------------------------------

    def place(self, who: str, **wishes: Any) -> control.Place:
        place = place_of(next(self.tickets), who, **wishes)
        self.hear("client", who, place)
        return place

    def spawn(self) -> list[tuple[str, control.Request]]:
        """Have the workers start their actors; return which worker has which."""
        spawned = [(who, spawn.request) for who, spawn in self.taken(control.Spawn)]
        for who, request in spawned:
            self.hear("worker", who, control.Spawned(location=location_of(request), since=1.0))
        return spawned

    def bury(self, worker: str, actor: str) -> None:
        obituary = control.Obituary(actor=actor, life=0, asked=True, exit=0)
        self.hear("worker", worker, control.Died(obituary=obituary))

    def tick(self) -> list[Instruction]:
        for who in (*self.workers, *self.clients):
            control.encode(control.Tick())
            self.core.renew(who, self.now)
        return self.core.expire(self.now)


def request_of(actor: str, owner: str, **wishes: Any) -> control.Request:
    fields: dict[str, Any] = {
        "actor": actor,
        "name": f"Environment-{actor[:6]}",
        "class_name": "Environment",
        "owner": owner,
        "job": owner,
        # Floats, as after decoding: a seal covers the bytes.
        "resources": Resources(
            float(wishes.pop("cpus", 1)),
            float(wishes.pop("gpus", 0)),
            wishes.pop("memory", 1 << 30),
        ),
        "python": this_machine.PYTHON,
        "modules": ["numpy", "torch"],
        **wishes,
    }
    return control.Request(**fields)


def place_of(number: int, who: str, **wishes: Any) -> control.Place:
    request = request_of(f"{number:08x}{'f' * 24}", who, **wishes)
    return control.Place(ticket=number, request=request, patience_s=60)


def location_of(request: control.Request) -> control.Location:
    return control.Location(
        actor=request.actor,
        name=request.name,
        class_name=request.class_name,
        life=request.life,
        pid=12345,
        host="a boot, a mount namespace, a user: some sixty characters in all",
        machine="machine",
        ipc="ipc:///tmp/remotely-abcdefgh/s/0123456789ab.0",
        tcp="tcp://10.0.0.1:45678",
        public_key=b"k" * 40,
    )


def status(number: int, worker: int, owner: str, max_restarts: int = 0) -> control.ActorStatus:
    actor = f"{worker:06x}{number:04x}{'0' * 22}"
    maker = owner if max_restarts else ""
    request = request_of(actor, owner, max_restarts=max_restarts, maker=maker)
    return control.ActorStatus(location=location_of(request), request=request, since=1e9)


def hello_of(who: str) -> control.Hello:
    return control.Hello(
        session=who,
        python=this_machine.PYTHON,
        pid=1,
        host="elsewhere",
        machine="machine",
        modules=["numpy", "torch"],
    )


def figures_of(actors: list[control.ActorStatus]) -> list[control.Figures]:
    return [
        control.Figures(actor=one.location.actor, calls=12345, cpu_percent=99.9, rss=1 << 28)
        for one in actors
    ]


def register(
    name: str,
    actors: list[control.ActorStatus],
    cpus: float = 0,
    admission: Admission = ADMISSION,
    key: bytes = KEY,
    nonce: str = "",
) -> control.Register:
    """Return a worker's registration, with actors that the holder of a key placed there."""
    replace, placed = msgspec.structs.replace, []
    for one in actors:
        request = replace(one.request, key=key)
        seal = admission.seals.seal(name, request, one.gpu_ids)
        placed.append(replace(one, request=request, seal=seal))
    actors = placed
    return control.Register(
        worker=name,
        nonce=nonce,
        python=this_machine.PYTHON,
        host="elsewhere",
        machine=f"machine-{name[-4:]}",
        address="10.0.0.1",
        pid=1,
        resources=Resources(cpus or len(actors) + ROOM, 0, len(actors) + 256 << 30),
        actors=actors,
    )


# --- without sockets ------------------------------------------------------------------------------


def figures(workers: int, actors: int) -> dict[str, float]:
    """Return the microseconds of each event on a cluster of this size."""
    gc.set_threshold(GC_THRESHOLD)  # as in the master's process
    cluster = Cluster(workers, actors)
    found: dict[str, float] = {}
    for found_register in cluster.registers:
        cluster.hear("worker", found_register.worker, found_register)
    found["a worker is back, with its actors"] = cluster.took_us(workers)
    for who in cluster.clients:
        cluster.hear("client", who, hello_of(who))
    found["a client says hello"] = cluster.took_us(workers)
    _of_placing(cluster, found)
    _of_rest(cluster, found)
    _of_waiting(cluster, found)
    _of_ends(cluster, found)
    return found


def _of_placing(cluster: Cluster, found: dict[str, float]) -> None:
    count = min(SAMPLES, 10 * len(cluster.workers))
    askers = list(itertools.islice(itertools.cycle(cluster.clients), count))
    spawned = []
    for who in askers:
        cluster.place(who, cpus=0.01)
        spawned += cluster.spawn()
    assert len(spawned) == count
    found["a placement"] = cluster.took_us(count)
    for who, (_, request) in zip(askers, spawned, strict=True):
        cluster.hear("client", who, control.Locate(ticket=1, name=request.name))
    found["an actor is looked up by name"] = cluster.took_us(count)
    for who, (worker, request) in zip(askers, spawned, strict=True):
        cluster.hear("client", who, control.End(actor=request.actor, grace_s=5.0))
        cluster.bury(worker, request.actor)
    found["an actor ends"] = cluster.took_us(count)


def _of_rest(cluster: Cluster, found: dict[str, float]) -> None:
    for who in cluster.workers:
        cluster.hear("worker", who, control.Beat())
    found["a beat"] = cluster.took_us(len(cluster.workers))
    for one in cluster.registers:
        cluster.hear("worker", one.worker, control.Report(actors=figures_of(one.actors)))
    found["a report of a worker's actors"] = cluster.took_us(len(cluster.workers))
    cluster.time(cluster.tick)
    found["a tick, for each peer"] = cluster.took_us(len(cluster.workers + cluster.clients))


def _of_waiting(cluster: Cluster, found: dict[str, float]) -> None:
    dying = cluster.registers[: min(10, len(cluster.registers))]
    for name, memory in (("alike", lambda n: 1 << 30), ("all different", lambda n: n << 20)):
        asker = cluster.clients[-1]
        waiting = [cluster.place(asker, cpus=3, memory=memory(n)) for n in range(WAITERS)]
        assert not cluster.taken(control.Spawn)
        found[f"a request waits ({name})"] = cluster.took_us(WAITERS)
        for one in dying:  # one more core is free, and a request needs three
            cluster.bury(one.worker, one.actors[-1].location.actor)
        assert not cluster.taken(control.Spawn)
        found[f"an actor ends while {WAITERS:,} wait in vain ({name})"] = cluster.took_us(
            len(dying)
        )
        for place in waiting:
            cluster.hear("client", asker, control.End(actor=place.request.actor, grace_s=0.0))
        found[f"a request is taken back ({name})"] = cluster.took_us(WAITERS)
        dying = [msgspec.structs.replace(one, actors=one.actors[:-1]) for one in dying]


def _of_ends(cluster: Cluster, found: dict[str, float]) -> None:
    for who, one in list(zip(cluster.clients, cluster.registers, strict=True))[-5:]:
        cluster.hear("client", who, control.Goodbye())
        for actor in one.actors:
            cluster.bury(one.worker, actor.location.actor)
        assert cluster.taken(control.Farewell)
    found["a client leaves, with a worker's actors"] = cluster.took_us(5)
    for who in cluster.workers[:5]:
        cluster.time(lambda who=who: cluster.core.remove_worker(who, "lost", cluster.now))  # type: ignore[misc]
    found["a worker is lost, with its actors"] = cluster.took_us(5)
    cluster.hear("client", cluster.clients[0], control.AskStatus(ticket=1))
    found["status, for each worker"] = cluster.took_us(len(cluster.workers) - 5)


def owner_of_all(workers: int, actors: int) -> dict[str, float]:
    """Return the microseconds per actor when the client that owns all of them ends."""
    who = "f" * 32
    cluster = Cluster(workers, actors, owner=who)
    cluster.hear("client", who, hello_of(who))
    for one in cluster.registers:
        cluster.hear("worker", one.worker, one)
    cluster.took_us(1)
    cluster.time(lambda: cluster.core.end_session(who, cluster.now))
    assert len(cluster.taken(control.End)) == actors
    found = {"the owner of all actors ends, for each": cluster.took_us(actors)}
    sample = cluster.registers[:: max(1, workers // SAMPLES)]
    for one in sample:
        cluster.bury(one.worker, one.actors[0].location.actor)
    found["and such an actor ends"] = cluster.took_us(len(sample))
    return found


def at_rest_percent(found: dict[str, float], workers: int) -> float:
    """Return the share of a core of the beats, reports and ticks of workers and as many clients."""
    us_per_s = (
        2 * workers / BEAT_EVERY_S * found["a beat"]
        + workers / BEAT_EVERY_S * found["a report of a worker's actors"]
        + 2 * workers / TICK_EVERY_S * found["a tick, for each peer"]
    )
    return us_per_s / 1e6 * 100


# --- a large cluster ------------------------------------------------------------------------------


def large(workers: int, actors: int) -> dict[str, float]:
    """Return the seconds of the master's events on one cluster, from its restart."""
    gc.set_threshold(GC_THRESHOLD)
    process = psutil.Process()
    cluster = Cluster(0, 0)
    cluster.time(cluster.tick)
    before = process.memory_info().rss
    longest_s = 0.0
    for w in range(workers):
        who = f"{w:032x}"
        living = [status(n, w, who, max_restarts=1) for n in range(actors // workers)]
        name, spent_s = f"{w:016x}", cluster.spent_s
        cluster.hear("client", who, hello_of(who))
        cluster.hear("worker", name, register(name, living, cpus=len(living) + 3.0))
        longest_s = max(longest_s, cluster.spent_s - spent_s)
        cluster.workers.append(name)
        cluster.clients.append(who)
        cluster.said.clear()
    found = {
        "its restart: all workers, actors and clients come back, s": cluster.took_us(1) / 1e6,
        "the longest of these, ms": longest_s * 1e3,
        "its memory then, MB": (process.memory_info().rss - before) / 1e6,
    }
    latencies = []
    for who in itertools.islice(itertools.cycle(cluster.clients), 10 * SAMPLES):
        spent_s = cluster.spent_s
        cluster.place(who, cpus=0.01)
        cluster.spawn()
        latencies.append((cluster.spent_s - spent_s) * 1e6)
    found["a placement, us: median"] = statistics.median(latencies)
    found["a placement, us: 99 of 100"] = statistics.quantiles(latencies, n=100)[98]
    cluster.took_us(1)
    found |= _of_a_rack(cluster, workers // 10)
    cluster.hear("client", cluster.clients[0], control.AskStatus(ticket=1, fresh=False))
    found["a status, ms"] = cluster.took_us(1) / 1e3
    cluster.time(cluster.tick)
    found["a tick, ms"] = cluster.took_us(1) / 1e3
    return found


def _of_a_rack(cluster: Cluster, count: int) -> dict[str, float]:
    """Return the master's seconds when `count` workers are lost at once."""
    lost = set(cluster.workers[:count])
    cluster.now += LEASE_S
    for who in (*cluster.workers, *cluster.clients):
        if who not in lost:
            cluster.core.renew(who, cluster.now)
    cluster.took_us(1)
    cluster.time(lambda: cluster.core.expire(cluster.now))
    died = [(who, said.obituary) for who, said in cluster.taken(control.Died)]
    found = {f"{count:,} workers are lost at once, s": cluster.took_us(1) / 1e6}
    cluster.workers = cluster.workers[count:]
    for who, obituary in died:
        request = request_of(obituary.actor, who, max_restarts=1, maker=who, life=1)
        place = control.Place(ticket=next(cluster.tickets), request=request, patience_s=60)
        cluster.hear("client", who, place)
    placed = len(cluster.spawn())
    found[f"and {len(died):,} actors are placed again, s"] = cluster.took_us(1) / 1e6
    assert placed == len(died), f"{placed} of {len(died)} were placed again"
    return found


# --- with sockets ---------------------------------------------------------------------------------


def with_sockets(workers: int, actors: int) -> dict[str, float]:
    """Return a master process's share of a core at rest, and a client's latency of a placement."""
    master_key, client_key, worker_key, _ = fresh_keys()
    with running(master_key, client_key, worker_key, workers, actors) as (address, pid):
        rest_percent = percent_of_a_core(pid)
        context = sockets.new_context()
        try:
            latencies_s = _latencies_s(context, address, client_key, worker_key)
        finally:
            context.destroy(linger=0)
    return {
        "at rest, % of a core": rest_percent,
        "a placement for a client, ms: median": 1e3 * statistics.median(latencies_s),
        "a placement for a client, ms: 99 of 100": 1e3 * sorted(latencies_s)[-SAMPLES // 100 - 1],
    }


@contextlib.contextmanager
def running(
    master_key: MasterKey, client_key: MemberKey, worker_key: MemberKey, workers: int, actors: int
) -> Iterator[tuple[str, int]]:
    """Run a master with simulated workers; yield its address and its pid."""
    daemons.raise_descriptor_limit()
    address = f"tcp://127.0.0.1:{free_port()}"
    master = _start_master(address, master_key)
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    secret, listed = master_key.pair.secret, client_key.pair.public
    members = (address, worker_key, secret, listed, workers, actors, ready)
    crowd = spawn.Process(target=_crowd, args=members, daemon=True)
    crowd.start()
    try:
        if not ready.wait(60):
            raise SystemExit(f"{workers} workers were not registered within 60 s")
        time.sleep(SETTLE_S)
        yield address, master.pid
    finally:
        crowd.kill()
        crowd.join()
        assert master.stdin is not None
        master.stdin.close()  # its lifeline
        master.wait()


def _start_master(address: str, key: MasterKey) -> "subprocess.Popen[bytes]":
    master = subprocess.Popen(
        daemons.module_command("remotely.master"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert master.stdin is not None
    assert master.stdout is not None
    config = MasterConfig(address=address, key=key.to_dict(), lifeline=True)
    master.stdin.write(msgspec.json.encode(config) + b"\n")
    master.stdin.flush()
    if (word := master.stdout.readline()) != b"READY\n":
        raise SystemExit(f"the master did not start: {word.decode()}")
    return master


def percent_of_a_core(pid: int) -> float:
    """Return the share of a core of all threads of a process during REST_S."""
    process = psutil.Process(pid)
    begin, before = time.monotonic(), process.cpu_times()
    time.sleep(REST_S)
    after, seconds = process.cpu_times(), time.monotonic() - begin
    return 100 * (after.user + after.system - before.user - before.system) / seconds


def _crowd(
    address: str,
    key: MemberKey,
    secret: bytes,
    client_key: bytes,
    workers: int,
    actors: int,
    ready: Any,
) -> None:
    """Simulate all workers: each in turn sends a report and receives its messages."""
    daemons.raise_descriptor_limit()
    context = sockets.new_context()
    lines = [
        sockets.client(context, key.pair, key.master_public, Reconnect.BACKING_OFF)
        for _ in range(workers)
    ]
    reports = []
    for w, line in enumerate(lines):
        living = [status(n, w, "") for n in range(actors // workers)]
        sockets.connect(line, address)
        name = bound_id("worker", key.pair.public, str(w))
        admission = Admission([], [], secret)
        one = register(name, living, admission=admission, key=client_key, nonce=str(w))
        line.send(control.encode(one))
        reports.append(control.encode(control.Report(actors=figures_of(living))))
    for line in lines:
        line.poll()  # until it is registered
    ready.set()
    begin = time.monotonic()
    for turn in itertools.count():
        line = lines[turn % workers]
        time.sleep(max(0.0, begin + turn * BEAT_EVERY_S / workers - time.monotonic()))
        while sockets.readable(line):
            line.recv()
        line.send(reports[turn % workers])


def _latencies_s(
    context: "zmq.Context[zmq.Socket[bytes]]",
    address: str,
    client_key: MemberKey,
    worker_key: MemberKey,
) -> list[float]:
    """Place actors one by one on the worker with the most room, which replies immediately."""
    session, found = bound_id("client", client_key.pair.public, "one"), []
    hello = control.Hello(
        session=session, nonce="one", python=this_machine.PYTHON, pid=1, host="", machine=""
    )
    name = bound_id("worker", worker_key.pair.public, "one")
    worker = _Member(context, address, worker_key, register(name, [], cpus=1e6, nonce="one"))
    client = _Member(context, address, client_key, hello)
    worker.hears(control.Registered)
    client.hears(control.Welcome)
    for number in range(SAMPLES):
        begin = time.perf_counter()
        client.says(place_of(number, session))
        spawn = worker.hears(control.Spawn)
        worker.says(control.Spawned(location=location_of(spawn.request)))
        client.hears(control.Placed)
        found.append(time.perf_counter() - begin)
    return found


class _Member:
    """A connection that waits for messages of a kind."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        key: MemberKey,
        introduction: msgspec.Struct,
    ) -> None:
        self._decoder = control.Decoder(f"master > {key.role}")
        self._line = sockets.client(context, key.pair, key.master_public, Reconnect.BACKING_OFF)
        sockets.connect(self._line, address)
        self.says(introduction)

    def says(self, message: msgspec.Struct) -> None:
        self._line.send(control.encode(message))

    def hears(self, kind: type[Said]) -> Said:
        while True:
            if isinstance(said := self._decoder.decode(self._line.recv()), kind):
                return said


# --- the table ------------------------------------------------------------------------------------


def main() -> None:
    parser = command_line.parser("python -m tools.bench.master", __doc__)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--actors", type=int)
    parser.add_argument("--large", action="store_true", help="events of one large cluster")
    parser.add_argument("--sockets", action="store_true", help="also a real master")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.workers = options.workers or (10_000 if options.large else 1000)
    options.actors = options.actors or (100_000 if options.large else 20_000)
    if options.large:
        for name, value in large(options.workers, options.actors).items():
            print(f"{name:60}{value:>14,.2f}")
        return
    sizes = [(max(10, int(s * options.workers)), max(20, int(s * options.actors))) for s in SIZES]
    columns = []
    for workers, actors in sizes:
        column = {**figures(workers, actors), **owner_of_all(workers, actors)}
        column["at rest, % of a core"] = at_rest_percent(column, workers)
        if options.sockets:
            measured = with_sockets(workers, actors)
            column |= {f"with sockets: {name}": value for name, value in measured.items()}
        columns.append(column)
    heads = [f"{workers:,}/{actors:,}" for workers, actors in sizes]
    print(
        f"{'microseconds of the master, by workers/actors':60}" + "".join(f"{h:>14}" for h in heads)
    )
    for name in columns[0]:
        print(f"{name:60}" + "".join(f"{column[name]:>14,.2f}" for column in columns))
    if options.json:
        rows = dict(zip(heads, columns, strict=True))
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
