"""The manager of a cluster: knows who is there, and places actors on workers.

It is never on the path of a call, and holds nothing that a worker does not know: after a restart
the workers register again, with their actors.  It unpickles nothing; it never sees a class.

    who          is thought alive while                      its end is the end of
    worker       it has a route, or beat within the lease    its actors (WorkerLost)
    client       the same; or on this host, its process is   the actors that it owns
    actor        its worker says so                          the actors that it owns, as a client

A route is proved by sending a tick along it: libzmq's own heartbeat drops the routes of peers that
are gone, and a send to such a route fails.  That does not need the peer's Python to run, so a
client that holds the GIL for a minute is not taken for dead.
"""

import contextlib
import itertools
import logging
import os
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from remotely import control, host, pid_file, sockets
from remotely.errors import RemotelyError
from remotely.keys import MasterKey
from remotely.lease import LEASE_S, TICK_EVERY_S, Leases
from remotely.loop import Loop
from remotely.placement import Ledger, Never, Placement, Resources, Wait

log = logging.getLogger("remotely.master")

OWNER_GRACE_S = 1.0  # for the actors of an owner that has ended: nobody waits for their results
REMEMBERED_DEATHS = 10_000
REFUSAL_LOG_EVERY_S = 60.0
MAX_HELD = 1000  # messages of one connection that has yet to say who it is
LEAVE_S = 5.0  # for the workers to end their actors and go, when the cluster is stopped


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher passes on standard input, as one line of JSON."""

    address: str
    key: dict[str, Any]
    lifeline: bool
    pid_file: str = ""  # written by the launcher, removed by us


@dataclass
class Session:
    """A client, for as long as its lease lasts, over any number of connections."""

    hello: control.Hello
    route: bytes
    pidfd: int = -1
    leaving: bool = False


@dataclass
class Machine:
    """A worker."""

    register: control.Register
    route: bytes
    pidfd: int = -1
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


class Master:
    def __init__(self, config: Config) -> None:
        self._key = MasterKey.from_dict(config.key)
        self._host = host.identity()
        self._sessions: dict[str, Session] = {}
        self._workers: dict[str, Machine] = {}
        self._routes: dict[bytes, str] = {}  # to a session or a worker
        self._held: dict[bytes, list[object]] = {}  # what came along a route before its name did
        self._actors: dict[str, Record] = {}
        self._names: dict[str, str] = {}
        self._waiting: list[Waiter] = []
        self._deaths: OrderedDict[str, control.Obituary] = OrderedDict()
        self._log_asks: dict[int, LogAsk] = {}
        self._log_ids = itertools.count(1)
        self._leave_by = 0.0  # not zero: the cluster is being stopped
        self._ledger = Ledger()
        self._leases = Leases(LEASE_S)
        self._readers = {role: control.Reader(union) for role, union in control.ToMaster.items()}
        self._refusals_logged: dict[str, float] = {}

        self._loop = Loop()
        self._context = sockets.new_context()
        self._door = sockets.Door(self._context, self._key.role_of)
        self._loop.watch_socket(self._door.socket, self._open_door)
        self._socket = sockets.server(self._context, self._key.pair)
        self._socket.bind(config.address)
        self._loop.watch_socket(self._socket, self._receive)
        self._loop.every(TICK_EVERY_S, self._tick)
        if config.lifeline:
            self._loop.watch(0, self._feel_lifeline)

    def run(self) -> None:
        """Serve until stopped."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call(self._stop))
        self._loop.watch(wake_read, lambda: _swallow(wake_read))
        self._loop.run()
        self._context.destroy(linger=500)

    # --- coming in --------------------------------------------------------------------------------

    def _open_door(self, frames: list[zmq.Frame]) -> None:
        self._door.answer(frames)
        if address := self._door.refused_address:
            now = time.monotonic()
            if now - self._refusals_logged.get(address, -REFUSAL_LOG_EVERY_S) > REFUSAL_LOG_EVERY_S:
                self._refusals_logged[address] = now
                log.warning("refused a connection from %s: unknown key", address)

    def _receive(self, frames: list[zmq.Frame]) -> None:
        route = frames[0].bytes
        role = sockets.role_of(frames[0])
        try:
            message = self._readers[role].read(frames[1].buffer if len(frames) == 2 else b"")
        except RemotelyError as error:
            self._send(route, control.Refused(error=type(error).__name__, why=str(error)))
            raise
        match message:
            case control.Hello():
                self._greet(route, message)
            case control.Register():
                self._enlist(route, message)
            case _:
                who = self._routes.get(route)
                if who is None:
                    self._hold(route, message)
                elif role == "client":
                    self._leases.renew(who, time.monotonic())
                    self._hear_client(who, message)
                else:
                    self._leases.renew(who, time.monotonic())
                    self._hear_worker(who, message)

    def _hold(self, route: bytes, message: object) -> None:
        """Keep what somebody says who has to say first who it is: a new master may be why."""
        held = self._held.setdefault(route, [])
        if not held or isinstance(message, control.Beat):
            self._send(route, control.WhoAreYou())
        if len(held) < MAX_HELD:
            held.append(message)

    def _send(self, route: bytes, message: msgspec.Struct) -> bool:
        """Return whether there is a route; a message on it may still be lost with its peer."""
        try:
            self._socket.send_multipart([route, control.write(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _tell(self, session: str, message: msgspec.Struct) -> None:
        if found := self._sessions.get(session):
            self._send(found.route, message)

    def _tell_worker(self, worker: str, message: msgspec.Struct) -> None:
        if found := self._workers.get(worker):
            self._send(found.route, message)

    def _tick(self) -> None:
        now = time.monotonic()
        for route, who in list(self._routes.items()):
            if self._send(route, control.Tick()):
                self._leases.renew(who, now)
        self._held = {r: held for r, held in self._held.items() if self._send(r, control.Tick())}
        for who in self._leases.expired(now):
            if who in self._workers:
                self._lose_worker(who)
            elif who in self._sessions:
                log.warning("lost the client %s", self._sessions[who].hello.machine)
                self._end_session(who)
            else:
                self._orphan(who)
        for waiter in [w for w in self._waiting if w.deadline <= now]:
            self._waiting.remove(waiter)
            why = f"{self._why_waiting(waiter.place.request)} for {waiter.place.patience_s:.0f} s"
            self._refuse(waiter.session, waiter.place.ticket, "NoResources", why)

    # --- clients ----------------------------------------------------------------------------------

    def _greet(self, route: bytes, hello: control.Hello) -> None:
        session = self._sessions.get(hello.session)
        if session is None:
            session = self._sessions[hello.session] = Session(hello, route)
            if hello.host == self._host:
                session.pidfd = self._watch(hello.pid, lambda: self._end_session(hello.session))
        self._routes.pop(session.route, None)
        session.route = route
        self._routes[route] = hello.session
        self._leases.renew(hello.session, time.monotonic())
        for worker in self._workers.values():
            if hello.modules and worker.register.python == hello.python:
                self._send(worker.route, control.Preload(modules=hello.modules))
        workers = [w.register for w in self._workers.values()]
        pythons = sorted({register.python for register in workers})
        self._send(route, control.Welcome(pythons=pythons, cpus=sum(r.cpus for r in workers)))
        for message in self._held.pop(route, ()):
            self._hear_client(hello.session, message)

    def _watch(self, pid: int, on_end: Callable[[], None]) -> int:
        """See a process of this host end at once, however it ends; return what to unwatch."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            self._loop.call(on_end)
            return -1
        self._loop.watch(pidfd, on_end)
        return pidfd

    def _unwatch(self, pidfd: int) -> None:
        if pidfd >= 0:
            self._loop.unwatch(pidfd)
            os.close(pidfd)

    def _hear_client(self, who: str, message: object) -> None:
        match message:
            case control.Place():
                self._place(who, message)
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

    def _end_session(self, who: str) -> None:
        session = self._sessions.pop(who, None)
        if session is None:
            return
        self._routes.pop(session.route, None)
        self._leases.end(who)
        self._unwatch(session.pidfd)
        self._waiting = [w for w in self._waiting if w.session != who]
        for record in self._actors.values():
            record.watchers.discard(who)
        self._end_owned(who)

    def _owned(self, who: str) -> list[Record]:
        return [record for record in self._actors.values() if record.request.owner == who]

    def _end_owned(self, who: str) -> None:
        for record in self._owned(who):
            self._end_actor(record.request.actor, OWNER_GRACE_S)

    def _orphan(self, who: str) -> None:
        """A client that owned actors before this master started has not come back."""
        self._end_owned(who)

    def _say_farewell(self, who: str) -> None:
        """Let a client go when its actors have ended and their last output has passed."""
        session = self._sessions.get(who)
        if session and session.leaving and not self._owned(who):
            self._send(session.route, control.Farewell())
            self._end_session(who)

    def _read_log(self, who: str, ticket: int, actor: str, offset: int) -> None:
        actor = self._names.get(actor, actor)
        record = self._actors.get(actor)  # an ended actor's file lies where it lived: ask them all
        workers = {record.worker} if record else set(self._workers)
        ask = next(self._log_ids)
        self._log_asks[ask] = LogAsk(who, ticket, workers)
        message = control.ReadLog(ticket=ask, actor=actor, offset=offset)
        for worker in workers:
            self._tell_worker(worker, message)
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

    def _place(self, who: str, place: control.Place) -> None:
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
            deadline = time.monotonic() + place.patience_s
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
        if not self._workers or self._leave_by:
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
                self._tell_worker(worker, control.Spawn(request=request, gpu_ids=gpus))
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
            self._tell_worker(record.worker, control.End(actor=actor, grace_s=grace_s))
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

    def _enlist(self, route: bytes, register: control.Register) -> None:
        name = register.worker
        machine = self._workers.get(name)
        if machine is None:
            machine = self._workers[name] = Machine(register, route)
            size = Resources(register.cpus, register.gpus, register.memory)
            self._ledger.add_worker(name, size, register.python)
            if register.host == self._host:
                machine.pidfd = self._watch(
                    register.pid, lambda: self._remove_worker(name, "its worker's process ended")
                )
            for status in register.actors:
                self._relearn(name, status)
                machine.reports[status.location.actor] = status
        self._routes.pop(machine.route, None)
        machine.route = route
        self._routes[route] = name
        self._leases.renew(name, time.monotonic())
        self._send(route, control.Registered(client_keys=list(self._key.client_keys)))
        for message in self._held.pop(route, ()):
            self._hear_worker(name, message)
        self._reconcile(name, {status.location.actor: status for status in register.actors})
        for status in register.actors:  # it was silent for so long that they were given up
            if status.location.actor not in self._actors:
                end = control.End(actor=status.location.actor, grace_s=OWNER_GRACE_S)
                self._send(route, end)
        modules = {m for s in self._sessions.values() for m in s.hello.modules}
        if modules:
            self._send(route, control.Preload(modules=sorted(modules)))
        self._retry()

    def _reconcile(self, name: str, living: dict[str, control.ActorStatus]) -> None:
        """Settle what was lost on the way while a worker's connection was broken."""
        for actor, record in list(self._actors.items()):
            if record.worker != name:
                continue
            if record.location is None and actor in living:
                self._hear_worker(name, control.Spawned(location=living[actor].location))
            elif record.location is None:  # it ignores this if it is about to be born
                spawn = control.Spawn(request=record.request, gpu_ids=record.gpu_ids)
                self._tell_worker(name, spawn)
            elif actor not in living:
                self._forget(control.Obituary(actor=actor, life=record.request.life, lost=True))

    def _relearn(self, worker: str, status: control.ActorStatus) -> None:
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
            self._leases.renew(request.owner, time.monotonic())

    def _hear_worker(self, who: str, message: object) -> None:
        match message:
            case control.Spawned(location=location):
                if record := self._actors.get(location.actor):
                    record.location = location
                    self._workers[who].reports[location.actor] = control.ActorStatus(
                        location=location,
                        request=record.request,
                        gpu_ids=record.gpu_ids,
                        since=time.time(),
                    )
                    if record.asker:
                        session, ticket = record.asker
                        record.asker = None
                        self._tell(session, control.Placed(ticket=ticket, location=location))
                        if session not in self._sessions:  # it went while we were placing
                            self._end_actor(location.actor, OWNER_GRACE_S)
            case control.Died(obituary=obituary):
                self._forget(obituary)
            case control.Report(actors=actors):
                self._workers[who].reports = {a.location.actor: a for a in actors}
            case control.Output(job=job):
                self._tell(job, message)
            case control.LogPiece():
                self._pass_log(who, message)
            case control.Left():
                self._remove_worker(who, "its worker was stopped")

    def _lose_worker(self, name: str) -> None:
        machine = self._workers[name].register.machine
        log.warning("lost the worker on %s", machine)
        self._remove_worker(name, f"{machine} was last heard {LEASE_S:.0f} s ago")

    def _remove_worker(self, name: str, why: str) -> None:
        machine = self._workers.pop(name, None)
        if machine is None:
            return
        self._unwatch(machine.pidfd)
        self._routes.pop(machine.route, None)
        self._leases.end(name)
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
                self._end_session(name)
        self._say_farewell(record.request.owner)
        self._retry()

    # --- the end ----------------------------------------------------------------------------------

    def _feel_lifeline(self) -> None:
        if not os.read(0, 4096):
            self._loop.unwatch(0)
            self._loop.stop()

    def _stop(self) -> None:
        """End the cluster: every worker ends its actors and itself, and then so do we."""
        if self._leave_by:
            return
        self._leave_by = time.monotonic() + LEAVE_S
        for machine in self._workers.values():
            self._send(machine.route, control.Leave())
        self._loop.every(0.02, self._see_off)

    def _see_off(self) -> None:
        for name, machine in list(self._workers.items()):
            if not self._send(machine.route, control.Tick()):
                self._remove_worker(name, "the cluster was stopped")
        if not self._workers or time.monotonic() > self._leave_by:
            self._loop.stop()


def _swallow(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 4096)


def main() -> None:
    """Be a master, as the one line on standard input says; say READY when calls are taken."""
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=Config)
    logging.basicConfig(format="remotely master: %(message)s", level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host.raise_descriptor_limit()
    try:
        master = Master(config)
    except zmq.ZMQError as error:
        print(f"cannot take {config.address}: {error}", flush=True)
        sys.exit(1)
    with contextlib.suppress(BrokenPipeError):  # whoever started us need not wait
        os.write(1, b"READY\n")
    master.run()
    if config.pid_file:
        pid_file.leave(Path(config.pid_file))


if __name__ == "__main__":
    main()
