"""The daemon of one machine: starts, watches and reaps the actors there.

It holds the truth about them: a master that was started again learns it from here.  It never
unpickles anything; a class and its arguments go from the client to the actor directly.

    a birth              nursery.py
    an end               undertaker.py
    we lose our lease    every actor is killed, before the master may place others (fence.py)
    we end               every actor is killed, the folder is removed

The class is over 250 lines: what the master says, and what becomes of an actor, meet in one table.
"""

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from remotely.errors import RemotelyError
from remotely.machine import daemons, pid_file, this_machine
from remotely.protocol import control
from remotely.protocol.configs import WorkerConfig
from remotely.protocol.control import MAX_MESSAGE
from remotely.protocol.lease import FENCE_S
from remotely.reporting.throttled_log import ThrottledLog
from remotely.testing import faults
from remotely.transport import fence, sockets
from remotely.transport.access_list import AccessRelay
from remotely.transport.fence import LOOK_EVERY_S, WorkerFence
from remotely.transport.keys import MemberKey
from remotely.transport.loop import Loop
from remotely.transport.master_link import Link
from remotely.values import restart_file
from remotely.worker.child import CPU_AT_LEAST_S, Child, Stage
from remotely.worker.log_files import LogFiles
from remotely.worker.memory_limit import CHECK_EVERY_S, MemoryLimit
from remotely.worker.nursery import Home, Nursery
from remotely.worker.output import read_piece
from remotely.worker.undertaker import Undertaker

log = logging.getLogger("remotely.worker")

END_GRACE_S = 1.0  # for actors when the worker itself is asked to end
LAST_WORD_MS = 500
MOST_LAST_WORDS = 300  # of an actor; more than its socket holds
_PR_SET_CHILD_SUBREAPER = 36


class Worker:
    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._key = MemberKey.from_dict(config.key)
        self._folder = Path(config.folder)
        self._host = this_machine.identity()
        self._machine = this_machine.machine_name()
        self._children: dict[str, Child] = {}
        self._actor_decoder = control.Decoder(control.FromActor)
        self._next_lives: dict[str, control.Spawn] = {}  # for when the one before has ended
        self._logs = LogFiles(self._folder / "logs")
        self._announced = False
        self._introduced = 0.0  # when we last said who we are
        self._leaving = False
        self._loop = Loop()
        home = Home(
            worker=config.worker,
            folder=self._folder,
            master=config.master,
            master_public=self._key.master_public,
            tcp_host=config.tcp_host,
            gpus=config.gpus,
            host=self._host,
            machine=self._machine,
            stays=not config.lifeline,
        )
        self._undertaker = Undertaker(
            self._loop, config.worker, self._children, self._last_words, self._buried
        )
        self._nursery = Nursery(self._loop, home, self._logs, self, ThrottledLog(log.warning))
        self._fence = WorkerFence(self._folder, config.master)
        self._access_relay = AccessRelay(lambda asked: self._link.send(asked), self._tell)
        self._context = sockets.new_context()
        self._link = Link(
            self._loop,
            self._context,
            config.master,
            self._key,
            self._register,
            self._hear_master,
            self._refused,
            self._fence.renew if sockets.is_remote(config.master) else None,
        )
        self._loop.every(LOOK_EVERY_S, self._look)
        self._loop.every(CHECK_EVERY_S, MemoryLimit(self._children.values()).check)
        if config.lifeline:
            self._loop.watch(0, self._feel_lifeline)

    def run(self) -> None:
        """Serve until told to leave, then leave nothing behind."""
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call(self._leave))
        self._undertaker.listen()
        self._loop.run()
        self._nursery.close()
        self._undertaker.kill_all()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._config.pid_file:
            pid_file.leave(Path(self._config.pid_file))
        self._link.send(control.Left())
        # The master of an embedded cluster ends with us, and will not hear it.
        self._context.destroy(linger=0 if self._config.lifeline else LAST_WORD_MS)

    # --- the master -------------------------------------------------------------------------------

    def _register(self) -> control.Register:
        self._introduced = fence.now()
        self._loop.call(self._access_relay.ask_again)
        return control.Register(
            worker=self._config.worker,
            python=this_machine.PYTHON,
            host=self._host,
            machine=self._machine,
            address=self._config.tcp_host or "this machine",
            pid=os.getpid(),
            cpus=self._config.cpus,
            gpus=len(self._config.gpus),
            gpu_names=self._config.gpus,
            memory=this_machine.memory(),
            actors=[c.as_status() for c in self._children.values() if c.announced],
            births=[
                *(c.as_spawn() for c in self._children.values() if not c.announced),
                *self._nursery.waiting,
                *self._next_lives.values(),
            ],
            nonce=self._config.nonce,
        )

    def _hear_master(self, message: object) -> None:
        match message:
            case control.Registered(client_keys=keys):
                if keys != self._nursery.client_keys:
                    self._nursery.client_keys = keys
                    self._admit()
                    self._access_relay.ask_again()
                self._fence.renew(self._introduced)
                self._announce("REGISTERED")
            case control.Spawn():
                if not self._leaving:
                    self._spawn(message)
            case control.Delegated(actor=actor):
                self._tell(actor, message)
            case control.Caller():
                self._access_relay.hear_master(message)
            case control.End():
                self._end(message)
            case control.Preload(modules=modules):
                self._nursery.preload(modules)
            case control.AskFigures():
                self._begin_report()
            case control.ReadLog(ticket=ticket, actor=actor, offset=offset):
                self._read_log(ticket, actor, offset)
            case control.Leave():
                self._leave()

    def _admit(self) -> None:
        """Have the actors admit the newest keys, and no others."""
        keys = self._nursery.client_keys
        message = control.encode(control.Admit(client_keys=keys))
        for child in self._children.values():
            if child.client_keys is not keys:
                with contextlib.suppress(OSError):  # one that is stopped is told when it reads
                    child.socket.send(message)
                    child.client_keys = keys

    def _tell(self, actor: str, message: msgspec.Struct) -> None:
        if child := self._children.get(actor):
            child.unsaid.append(control.encode(message))
            self._say(child)

    def _say(self, child: Child) -> None:
        """Say what is to be said, as far as there is room; the rest when we look again."""
        with contextlib.suppress(OSError):
            while child.unsaid:
                child.socket.send(child.unsaid[0])
                child.unsaid.popleft()

    def _look(self) -> None:
        self._admit()
        for child in self._children.values():
            self._say(child)
        if self._fence.look():
            self._give_up_actors()

    def _give_up_actors(self) -> None:
        """Our lease is over: the master may place them elsewhere, and there must be one of each."""
        why = f"its worker had no word from the master for {FENCE_S:.0f} s"
        self._withdraw_all(why)
        for child in self._children.values():
            if not child.why:
                child.why = why
                restart_file.discard(self._folder, child.request.actor)
                child.kill()
                log.warning("ended %s: no word from the master", child.request.name)

    def _refused(self, error: RemotelyError) -> None:
        if self._config.lifeline:  # its master has the same keys: it is slow, or about to end
            return
        if self._announced:
            log.error("the master refused this worker: %s", error)
        self._announce(f"{type(error).__name__} {error}")
        self._leave()

    def _announce(self, line: str) -> None:
        """Tell whoever started us, once, whether the master took us; they need not listen."""
        if not self._announced:
            self._announced = True
            with contextlib.suppress(OSError):
                os.write(1, f"{line}\n".encode())

    def _begin_report(self) -> None:
        """Somebody asks for a status: tell what the actors do, and use since a moment ago."""
        now = time.monotonic()
        due = [child for child in self._children.values() if child.begin_figures(now)]
        if due:
            self._loop.after(CPU_AT_LEAST_S, self._report)
        else:
            self._report()

    def _report(self) -> None:
        actors = [c.figures() for c in self._children.values() if c.announced]
        self._link.send(control.Report(actors=actors))

    def _read_log(self, ticket: int, actor: str, offset: int) -> None:
        actor, file = self._logs.find(actor)
        text, end = read_piece(file, offset) if file else ("", 0)
        self._link.send(
            control.LogPiece(
                ticket=ticket,
                text=text,
                offset=end,
                known=file is not None,
                ended=actor not in self._children,
            )
        )

    # --- the actors -------------------------------------------------------------------------------

    def _spawn(self, spawn: control.Spawn) -> None:
        request = spawn.request
        if (before := self._children.get(request.actor)) is not None:
            # The end of an earlier life was not told to the master, or that has given this one up.
            if before.request.life < request.life or before.asked or before.is_killed:
                self._next_lives[request.actor] = spawn
                before.kill()
            elif before.request.life == request.life and before.announced:
                self._link.send(control.Spawned(location=before.location, since=before.since))
            return
        if faults.ON:
            faults.at("worker.spawn")
        self._nursery.ask(spawn)

    def _end(self, end: control.End) -> None:
        if spawn := self._next_lives.pop(end.actor, None):
            self._died(_unborn(spawn.request, "closed", asked=True))
        elif child := self._children.get(end.actor):
            self._undertaker.end(child, end.grace_s, end.kill, end.by)
        elif request := self._nursery.withdraw(end.actor):
            self._died(_unborn(request, "closed", asked=True))
        else:
            restart_file.discard(self._folder, end.actor)

    def _withdraw_all(self, why: str, asked: bool = False) -> None:
        for spawn in self._nursery.waiting:
            self._nursery.withdraw(spawn.request.actor)
            self._died(_unborn(spawn.request, why, asked))

    def conceived(self, child: Child) -> None:
        self._children[child.request.actor] = child
        self._loop.watch(child.socket.fileno(), lambda: self._hear_actor(child))
        for fd, is_error in child.pipes.items():
            self._loop.watch(fd, self._reader_of(child, fd, is_error))

    def born(self, child: Child) -> None:
        self._undertaker.watch(child)

    def miscarried(self, child: Child) -> None:
        self._undertaker.clear(child)

    def not_born(self, request: control.Request, why: str) -> None:
        why = f"its machine could not start a process: {why}"
        log.warning("%s: %s", request.name, why)
        if child := self._children.get(request.actor):
            child.why = why
            self._undertaker.bury(child)
        else:
            self._died(_unborn(request, why))

    def exited(self, pid: int, status: int) -> None:
        self._undertaker.exited(pid, status)

    def said(self, request: control.Request, is_error: bool, text: str) -> None:
        self._link.send(
            control.Printed(
                actor=request.actor,
                name=request.name,
                job=request.job,
                error=is_error,
                text=text,
            )
        )

    def logged(self, request: control.Request, logged: control.Logged) -> None:
        self._link.send(
            msgspec.structs.replace(logged, actor=request.actor, name=request.name, job=request.job)
        )

    def _reader_of(self, child: Child, fd: int, is_error: bool) -> Callable[[], None]:
        def read() -> None:
            if not child.output.read(fd, is_error):
                self._loop.unwatch(fd)

        return read

    def _hear_actor(self, child: Child) -> None:
        try:
            data = child.socket.recv(MAX_MESSAGE)
        except OSError:
            data = b""
        if not data:
            self._loop.unwatch(child.socket.fileno())
            return
        match message := self._actor_decoder.decode(data):
            case control.Bound(tcp=tcp):
                child.location = msgspec.structs.replace(child.location, tcp=tcp)
                child.announced = True
                if faults.ON:
                    faults.at("worker.spawned")
                self._link.send(control.Spawned(location=child.location, since=child.since))
            case control.Count(calls=calls):
                child.calls = calls
            case control.Logged():
                child.log.take(message)
            case control.Delegate(key=key):
                child.delegate = child.delegate or key
                actor = child.request.actor
                self._link.send(control.Delegate(actor=actor, key=child.delegate))
            case control.MayCall() as question:
                self._access_relay.hear_actor(child.request.actor, question)
            case control.Ending(why=why):
                child.asked = True
                child.why = child.why or why
                self._undertaker.leave_time(child, Stage.ENDS)
            case control.Exiting(calls=calls):
                child.calls = calls
                self._undertaker.leave_time(child, Stage.EXITS)

    def _last_words(self, child: Child) -> None:
        """Take what a dead process logged in the end; what else it said does not matter now."""
        with contextlib.suppress(OSError):
            for _ in range(MOST_LAST_WORDS):  # what it started may hold the other end, and talk on
                if not (data := child.socket.recv(MAX_MESSAGE)):
                    break
                with contextlib.suppress(Exception):  # whatever it has sent, it is to be buried
                    if isinstance(logged := self._actor_decoder.decode(data), control.Logged):
                        child.log.take(logged)
        child.log.end()

    def _buried(self, child: Child, obituary: control.Obituary) -> None:
        may_restart = child.announced and child.request.max_restarts and not obituary.asked
        self._died(obituary, child.as_status() if may_restart else None)

    def _died(self, obituary: control.Obituary, lived: control.ActorStatus | None = None) -> None:
        if obituary.asked:
            restart_file.discard(self._folder, obituary.actor)
        self._logs.end(obituary.actor)
        self._access_relay.forget(obituary.actor)
        spawn = self._next_lives.pop(obituary.actor, None)
        if spawn is None or spawn.request.life > obituary.life:  # else it would be taken for that
            self._link.send(control.Died(obituary=obituary, lived=lived))
        if spawn is not None:
            self._spawn(spawn)
        if self._leaving and not self._children:
            self._loop.stop()

    # --- the end ----------------------------------------------------------------------------------

    def _feel_lifeline(self) -> None:
        if not os.read(0, 4096):
            self._loop.unwatch(0)
            self._loop.stop()

    def _leave(self) -> None:
        self._leaving = True
        self._nursery.stop()
        self._withdraw_all("closed", asked=True)
        for child in list(self._children.values()):
            self._undertaker.end(child, END_GRACE_S)
        if not self._children:
            self._loop.stop()


def _unborn(request: control.Request, why: str, asked: bool = False) -> control.Obituary:
    return control.Obituary(actor=request.actor, life=request.life, why=why, asked=asked)


def main() -> None:
    """Be a worker, as the one line on standard input says."""
    line = sys.stdin.buffer.readline()
    if not line:  # whoever was to say it was interrupted
        return
    config = msgspec.json.decode(line, type=WorkerConfig)
    logging.basicConfig(
        format=daemons.log_format("worker", not config.lifeline), level=logging.WARNING
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    daemons.raise_descriptor_limit()
    Worker(config).run()
