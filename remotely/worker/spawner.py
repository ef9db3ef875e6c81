"""The start of actor processes: forks of a zygote, or new interpreters.

An actor without environment variables of its own is forked from a zygote (zygote_line.py): the
worker's, or that of its `python` and `packages`.  An actor with some gets a new interpreter
(startup.py), where they are set before the first import, once it has entered its environment.
Either way the first message on the child's socket describes the actor that it becomes.

    1  asked      the request is queued, and holds no resources (`ask`)
    2  prepared   there are a socket, pipes and a row, but no process (`_begin`)
    3  started    the zygote has sent a pidfd, or an interpreter was started (`_started`)
    3' failed     no process could be started: the parent is told why (`spawn_failed`), or there can
                  be no environment for it, or it was killed while that was made (`unbound`)
    3" lost       the zygote ended first: back to 1.  The next try is a new interpreter, since the
                  modules that the zygote was to import may have ended it (`_on_zygote_lost`)

A zygote may be busy for a long time, importing torch.  So of each at most FORKS_AT_ONCE requests
are between 2 and 3, and the others wait at 1.  One that ends before it has forked is not tried
again: its interpreter may be unfit for it, and its actors enter the environment by themselves.
"""

import contextlib
import errno
import functools
import itertools
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from remotely.machine import daemons, environments, processes
from remotely.machine.owned_fd import OwnedFd
from remotely.machine.watched_process import WatchedProcess
from remotely.protocol import control
from remotely.protocol.control import StoreAddress
from remotely.protocol.listening import Listening
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import activity
from remotely.transport.keys import fresh_pair
from remotely.transport.line import Line
from remotely.transport.loop import Loop
from remotely.worker.output import LogFiles, LogRelay, Output
from remotely.worker.reaper import Child, kill_group
from remotely.worker.zygote_line import OWN, Environment, ZygoteLine, entering

FORKS_AT_ONCE = 32  # each has descriptors in transit, of which the kernel limits the number


@dataclass(frozen=True)
class WorkerInfo:
    """The facts that are the same for all actors of a worker."""

    worker: str
    folder: Path
    master: str
    master_public: bytes
    listening: Listening
    gpus: list[str]  # as CUDA knows them
    host: str
    machine: str
    stays: bool  # the folder outlives the script
    store: StoreAddress | None = None  # of this machine, for large values from other machines


class Parent(Protocol):
    """The owner of the children: these methods report what happens to them."""

    def admitted(self, request: control.Request) -> list[bytes]:
        """Return the keys that may call an actor from its start."""

    def prepared(self, child: Child) -> None:
        """The child has a socket and pipes to watch, but no process yet."""

    def started(self, child: Child) -> None:
        """The child has a process."""

    def preparing(self, child: Child, what: str) -> None:
        """An environment is made for the child; `what` is what is worth saying about it."""

    def unbound(self, child: Child, told: control.NotBound) -> None:
        """The child can have no process."""

    def spawn_lost(self, child: Child) -> None:
        """The child got no process; another child will be prepared in its place."""

    def spawn_failed(self, request: control.Request, why: str, is_refused: bool = False) -> None:
        """No process could be started, and there is no further try.

        `is_refused`: nor could another machine start it.
        """

    def exited(self, pid: int, status: int) -> None:
        """The zygote has reaped a process."""

    def printed(self, request: control.Request, is_error: bool, text: str) -> None:
        """An actor has printed something."""

    def logged(self, request: control.Request, logged: control.Logged) -> None:
        """An actor has logged something."""


class Spawner:
    """The queue of requests, and the children on whose processes it waits."""

    def __init__(
        self,
        loop: Loop,
        info: WorkerInfo,
        logs: LogFiles,
        parent: Parent,
        throttled: ThrottledLog,
    ) -> None:
        self._loop = loop
        self._info = info
        self._logs = logs
        self._parent = parent
        self._throttled = throttled
        self._waiting: dict[str, tuple[control.Spawn, Environment]] = {}  # as they have arrived
        self._avoids_zygote: set[str] = set()  # waiting requests that a zygote's end set back
        self._is_due = False  # `_serve` is scheduled
        self._unfit: set[Environment] = set()  # whose zygotes have ended before they forked
        self._numbers = itertools.count()  # of tries
        self._decoder = control.Decoder("actor > worker")
        (info.folder / "s").mkdir(parents=True, exist_ok=True)
        self._zygotes = {OWN: self._zygote_for(OWN)}

    def ask(self, spawn: control.Spawn) -> None:
        """Queue a request."""
        self._waiting[spawn.request.actor] = spawn, Environment.of(spawn.request)  # -> 1
        self._serve_soon()

    def withdraw(self, actor: str) -> control.Request | None:
        """Remove a waiting request and return it; None if the actor does not wait."""
        self._avoids_zygote.discard(actor)
        waiting = self._waiting.pop(actor, None)
        return waiting[0].request if waiting else None

    @property
    def waiting(self) -> list[control.Spawn]:
        """The queued requests; the parent has been told of the others."""
        return [spawn for spawn, _ in self._waiting.values()]

    def _serve_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call(self._serve)

    def _serve(self) -> None:
        """1 -> 2 for one request: a thousand must not keep the loop from its other work."""
        self._is_due = False
        may_begin = (each for each in self._waiting.values() if self._may_begin(*each))
        if (found := next(may_begin, None)) is None:
            return
        spawn, environment = found
        del self._waiting[spawn.request.actor]
        try:
            self._begin(spawn, environment)
        except Exception as error:  # whatever the error, the client waits for an answer
            why = error.strerror if isinstance(error, OSError) else None
            why = why or f"{type(error).__name__}: {error}"
            # Environment variables that are invalid, or too long.
            too_long = errno.E2BIG, errno.EMSGSIZE
            is_refused = not isinstance(error, OSError) or error.errno in too_long
            self._parent.spawn_failed(spawn.request, why, is_refused)  # -> 3'
        if self._waiting:
            self._serve_soon()

    def _begin(self, spawn: control.Spawn, environment: Environment) -> None:
        is_forked = self._is_forked(spawn, environment)
        self._avoids_zygote.discard(spawn.request.actor)
        child, descriptors = self._prepare(spawn)  # -> 2
        try:
            self._parent.prepared(child)
            if is_forked:
                self._fork(child, environment, descriptors)
            else:
                self._execute(child, environment, descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)

    def _may_begin(self, spawn: control.Spawn, environment: Environment) -> bool:
        zygote = self._zygotes.get(environment)
        is_busy = zygote is not None and len(zygote.expected) >= FORKS_AT_ONCE
        return not (is_busy and self._is_forked(spawn, environment))

    def _is_forked(self, spawn: control.Spawn, environment: Environment) -> bool:
        avoids = spawn.request.actor in self._avoids_zygote or environment in self._unfit
        return not spawn.request.env and not avoids

    def preload(self, modules: list[str]) -> None:
        self._zygotes[OWN].preload(modules)

    def stop(self) -> None:
        """Start no new zygotes, and do not wait for the pending forks of those that there are."""
        for zygote in [*self._zygotes.values()]:
            zygote.stop()

    def close(self) -> None:
        for zygote in self._zygotes.values():
            zygote.close()

    def _prepare(self, spawn: control.Spawn) -> tuple[Child, list[int]]:
        """Return a child without a process, and the descriptors for its process."""
        with contextlib.ExitStack() as undo:
            ours, theirs = (
                undo.enter_context(end)
                for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            )
            out_read, out_write = _pipe(undo)
            error_read, error_write = _pipe(undo)
            for fd in (out_read, error_read):
                os.set_blocking(fd, False)
            line = Line(ours, self._decoder)
            child = self._child(spawn, line, {out_read: False, error_read: True})
            undo.pop_all()
            return child, [theirs.detach(), out_write, error_write]

    def _child(self, spawn: control.Spawn, line: Line, pipes: dict[int, bool]) -> Child:
        """Send the Birth, which the process will read; return the child."""
        info, pair, request = self._info, fresh_pair(), spawn.request
        # Each try has its own path: a process forked by a lost zygote may still bind the last one.
        ipc = f"ipc://{info.folder}/s/{request.actor[:12]}.{next(self._numbers)}"
        env = {**request.env, processes.TAG: self._tag_of(request)}
        birth = control.Birth(
            request=msgspec.structs.replace(request, env=env),
            master=info.master,
            master_public=info.master_public,
            host=info.host,
            machine=info.machine,
            ipc=ipc,
            listening=info.listening,
            folder=str(info.folder),
            gpus=[info.gpus[gpu] for gpu in spawn.gpu_ids],
            public_key=pair.public,
            secret_key=pair.secret,
            admitted=self._parent.admitted(request),
            again=spawn.again,
        )
        with activity.new() as (page_fd, page):
            line.send(birth, [page_fd])
        printed = functools.partial(self._parent.printed, request)
        logged = functools.partial(self._parent.logged, request)
        file, later = self._logs.begin(request), self._loop.after
        output = Output(file, printed, later, info.stays, self._logs.disk, request.job)
        return Child(
            request=request,
            gpu_ids=spawn.gpu_ids,
            seal=spawn.seal,
            location=control.Location(
                actor=request.actor,
                name=request.name,
                class_name=request.class_name,
                life=request.life,
                pid=0,
                host=info.host,
                machine=info.machine,
                ipc=ipc,
                tcp="",
                public_key=pair.public,
                store=info.store,
            ),
            line=line,
            output=output,
            log=LogRelay(output, logged, self._loop.after),
            page=page,
            pipes=pipes,
            since=time.time(),
            again=spawn.again,
        )

    def _tag_of(self, request: control.Request) -> str:
        return f"{self._info.worker}:{request.actor}"

    def _execute(self, child: Child, environment: Environment, descriptors: list[int]) -> None:
        """Start a new interpreter, with the actor's environment variables."""
        control_fd, out, error = descriptors
        request = child.request
        own = {processes.TAG: self._tag_of(request)}
        env, module = request.env, "remotely.actor.startup"
        command = daemons.module_command(module, str(control_fd))
        if environment != OWN:
            there = {name: env[name] for name in environments.OF_INTERPRETER if name in env}
            env = {name: value for name, value in env.items() if name not in there}
            command, asked = entering(environment, str(control_fd), there, module)
            own |= asked
        process = subprocess.Popen(
            command,
            pass_fds=[control_fd],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            env={**os.environ, **env, **own},
            start_new_session=True,
        )
        process.returncode = 0  # the worker's Reaper waits for it, not `subprocess`
        self._started(child, process.pid, _watched(process.pid))

    def _started(self, child: Child, pid: int, watched: WatchedProcess) -> None:
        """-> 3."""
        child.pid, child.watched = pid, watched
        child.location = msgspec.structs.replace(child.location, pid=pid)
        if child.is_killed:  # before it had a process
            child.kill()
        self._parent.started(child)

    # --- the zygotes ------------------------------------------------------------------------------

    def _zygote_for(
        self, environment: Environment, prints: tuple[int, int] | None = None
    ) -> ZygoteLine:
        info, heard, lost = self._info, self._on_zygote_message, self._on_zygote_lost
        return ZygoteLine(
            self._loop, info.folder, info.worker, heard, lost, self._throttled, environment, prints
        )

    def _fork(self, child: Child, environment: Environment, descriptors: list[int]) -> None:
        _, out, error = descriptors
        if (zygote := self._zygotes.get(environment)) is None:
            zygote = self._zygotes[environment] = self._zygote_for(environment, (out, error))
        number = next(self._numbers)
        try:
            zygote.fork(number, child, descriptors)
        finally:
            self._look_after(zygote)
        if not zygote.is_own:  # soon, since whoever kills it may look at it still
            abandon = functools.partial(self._abandon, zygote, number)
            child.abandon = functools.partial(self._loop.call, abandon)

    def _abandon(self, zygote: ZygoteLine, number: int) -> None:
        """A child was killed: it does not wait until its environment has been made."""
        if (child := zygote.expected.pop(number, None)) is not None:
            self._parent.unbound(child, control.NotBound(why="killed before it began"))  # -> 3'
            self._look_after(zygote)

    def _on_zygote_message(self, zygote: ZygoteLine, message: object, fds: list[OwnedFd]) -> None:
        match message:
            case control.Forked(number=number, pid=pid):
                zygote.living.add(pid)
                zygote.has_forked = True
                self._forked(zygote.expected.pop(number, None), pid, fds)
            case control.NotForked(number=number, why=why):
                if (child := zygote.expected.pop(number, None)) is not None:
                    self._parent.spawn_failed(child.request, why)
            case control.Exited(pid=pid, status=status):
                zygote.living.discard(pid)
                self._parent.exited(pid, status)
            case control.Preparing(what=what):
                for child in zygote.expected.values():
                    self._parent.preparing(child, what)
                    what = ""  # said once, by the first of them
            case control.NotBound():
                refused, zygote.expected = zygote.expected, {}
                for child in refused.values():
                    self._parent.unbound(child, message)  # -> 3'
        self._look_after(zygote)

    def _forked(self, child: Child | None, pid: int, fds: list[OwnedFd]) -> None:
        """A process was forked; without a child, it was abandoned."""
        try:
            # If this process has no free descriptor, none arrives; without one the end is not seen.
            watched = WatchedProcess(pid, fds[0]) if fds else _watched(pid)
        except OSError as error:
            if child is not None:
                self._parent.spawn_failed(child.request, str(error.strerror))
        else:
            if child is None:
                watched.kill()
            else:
                child.abandon = None
                self._started(child, pid, watched)

    def _look_after(self, zygote: ZygoteLine) -> None:
        """A zygote may have become free for others, or of no use."""

        def end() -> None:
            if not zygote.is_needed and self._zygotes.get(zygote.environment) is zygote:
                del self._zygotes[zygote.environment]
                zygote.close()

        if not zygote.is_needed:
            self._loop.call(end)
        if self._waiting:
            self._serve_soon()

    def _on_zygote_lost(self, zygote: ZygoteLine) -> None:
        if not zygote.is_own and self._zygotes.get(zygote.environment) is zygote:
            del self._zygotes[zygote.environment]
            if zygote.expected and not zygote.has_forked:
                self._unfit.add(zygote.environment)
        expected, zygote.expected = zygote.expected, {}
        for child in expected.values():
            if child.asked or child.is_killed or zygote.is_closing:
                self._parent.spawn_failed(child.request, "the zygote that was to fork it ended")
            else:
                self._parent.spawn_lost(child)  # 3" -> 1
                actor = child.request.actor
                self._avoids_zygote.add(actor)
                self._waiting[actor] = child.as_spawn(), zygote.environment
        if self._waiting:
            self._serve_soon()


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    for fd in ends:
        undo.callback(os.close, fd)
    return ends


def _watched(pid: int) -> WatchedProcess:
    """Watch a process; if that fails, kill it, as its end could not be seen."""
    try:
        return WatchedProcess(pid)
    except OSError:
        kill_group(pid)
        raise
