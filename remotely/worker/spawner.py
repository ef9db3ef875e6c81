"""The start of actor processes: forks of a zygote, or new interpreters.

An actor without environment variables of its own is forked from a zygote (zygote_line.py): the
worker's, or that of its `python` and `packages`.  An actor with some gets a new interpreter
(startup.py), where they are set before the first import, once it has entered its environment.
Either way the first message on the child's socket describes the actor that it becomes.

    1  asked      the request is queued, and holds no resources (`ask`)
    2  prepared   there are a socket, pipes and a row, but no process (`_begin`)
    3  started    the zygote has sent a pidfd, or an interpreter was started (`_started`)
    3' failed     no process could be started: the parent is told why (`spawn_failed`), or there can
                  be no environment for it (`unbound`), or nobody waits for that (`release`)
    3" lost       the zygote ended first: back to 1.  The next try is a new interpreter, since the
                  modules that the zygote was to import may have ended it (`_on_zygote_lost`)

A zygote may be busy for a long time, importing torch.  So of each at most FORKS_AT_ONCE requests
are between 2 and 3, and the others wait at 1.
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
from remotely.worker.zygote_line import OWN, Environment, ZygoteLine, entering, environment_of

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
        self._waiting: dict[str, control.Spawn] = {}  # in the order of arrival
        self._avoids_zygote: set[str] = set()  # waiting requests that a zygote's end set back
        self._is_due = False  # `_serve` is scheduled
        self._numbers = itertools.count()
        self._decoder = control.Decoder("actor > worker")
        (info.folder / "s").mkdir(parents=True, exist_ok=True)
        self._zygotes = {OWN: self._zygote_for(OWN)}

    def ask(self, spawn: control.Spawn) -> None:
        """Queue a request."""
        self._waiting[spawn.request.actor] = spawn  # -> 1
        self._serve_soon()

    def withdraw(self, actor: str) -> control.Request | None:
        """Remove a waiting request and return it; None if the actor does not wait."""
        self._avoids_zygote.discard(actor)
        spawn = self._waiting.pop(actor, None)
        return spawn.request if spawn else None

    @property
    def waiting(self) -> list[control.Spawn]:
        """The queued requests; the parent has been told of the others."""
        return list(self._waiting.values())

    def _serve_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call(self._serve)

    def _serve(self) -> None:
        """1 -> 2 for one request: a thousand must not keep the loop from its other work."""
        self._is_due = False
        spawn = next((each for each in self._waiting.values() if self._may_begin(each)), None)
        if spawn is None:
            return
        del self._waiting[spawn.request.actor]
        try:
            self._begin(spawn)
        except Exception as error:  # whatever the error, the client waits for an answer
            why = error.strerror if isinstance(error, OSError) else None
            why = why or f"{type(error).__name__}: {error}"
            # Environment variables that are invalid, or too long.
            too_long = errno.E2BIG, errno.EMSGSIZE
            is_refused = not isinstance(error, OSError) or error.errno in too_long
            self._parent.spawn_failed(spawn.request, why, is_refused)  # -> 3'
        if self._waiting:
            self._serve_soon()

    def _begin(self, spawn: control.Spawn) -> None:
        is_forked = self._is_forked(spawn)
        self._avoids_zygote.discard(spawn.request.actor)
        child, descriptors = self._prepare(spawn)  # -> 2
        try:
            self._parent.prepared(child)
            if is_forked:
                self._fork(child, descriptors)
            else:
                self._execute(child, descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)

    def _may_begin(self, spawn: control.Spawn) -> bool:
        zygote = self._zygotes.get(environment_of(spawn.request))
        is_busy = zygote is not None and len(zygote.expected) >= FORKS_AT_ONCE
        return not (is_busy and self._is_forked(spawn))

    def _is_forked(self, spawn: control.Spawn) -> bool:
        return not spawn.request.env and spawn.request.actor not in self._avoids_zygote

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

    def _execute(self, child: Child, descriptors: list[int]) -> None:
        """Start a new interpreter, with the actor's environment variables."""
        control_fd, out, error = descriptors
        request = child.request
        own = {processes.TAG: self._tag_of(request)}
        env, module = request.env, "remotely.actor.startup"
        command = daemons.module_command(module, str(control_fd))
        if request.has_own_interpreter:
            there = {name: env[name] for name in environments.OF_INTERPRETER if name in env}
            env = {name: value for name, value in env.items() if name not in there}
            command, asked = entering(environment_of(request), str(control_fd), there, module)
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

    def _zygote_for(self, environment: Environment, tag: str = "") -> ZygoteLine:
        info = self._info
        heard, lost = self._on_zygote_message, self._on_zygote_lost
        return ZygoteLine(
            self._loop, info.folder, info.worker, heard, lost, self._throttled, environment, tag
        )

    def _fork(self, child: Child, descriptors: list[int]) -> None:
        environment = environment_of(child.request)
        if environment not in self._zygotes:
            self._zygotes[environment] = self._zygote_for(environment, self._tag_of(child.request))
        self._zygotes[environment].fork(child, descriptors)

    def release(self, child: Child) -> None:
        """The parent ends a child: it is not to wait until its environment has been made."""
        zygote = self._zygotes.get(environment_of(child.request))
        if zygote is None or zygote.is_own or zygote.expected.get(child.request.actor) is not child:
            return
        del zygote.expected[child.request.actor]
        self._parent.unbound(child, control.NotBound(why="ended before it began"))  # -> 3'
        self._end_unless_needed(zygote)

    def _on_zygote_message(self, zygote: ZygoteLine, message: object, fds: list[OwnedFd]) -> None:
        match message:
            case control.Forked(actor=actor, pid=pid):
                zygote.living.add(pid)
                self._forked(zygote.expected.pop(actor, None), pid, fds)
            case control.NotForked(actor=actor, why=why):
                if (child := zygote.expected.pop(actor, None)) is not None:
                    self._parent.spawn_failed(child.request, why)
            case control.Exited(pid=pid, status=status):
                zygote.living.discard(pid)
                self._parent.exited(pid, status)
                self._end_unless_needed(zygote)
            case control.Preparing(what=what):
                for child in zygote.expected.values():
                    self._parent.preparing(child, what)
            case control.NotBound():
                refused, zygote.expected = zygote.expected, {}
                for child in refused.values():
                    self._parent.unbound(child, message)  # -> 3'
        if self._waiting:
            self._serve_soon()

    def _forked(self, child: Child | None, pid: int, fds: list[OwnedFd]) -> None:
        try:
            # If this process has no free descriptor, none arrives; without one the end is not seen.
            watched = WatchedProcess(pid, fds[0]) if fds else _watched(pid)
        except OSError as error:
            if child is not None:
                self._parent.spawn_failed(child.request, str(error.strerror))
        else:
            if child is not None:
                self._started(child, pid, watched)
            else:  # released
                watched.kill()

    def _end_unless_needed(self, zygote: ZygoteLine) -> None:
        """End a zygote without actors, once this message of it has been handled."""

        def end() -> None:
            if not zygote.is_needed and self._zygotes.get(zygote.environment) is zygote:
                del self._zygotes[zygote.environment]
                zygote.close()

        if not zygote.is_needed:
            self._loop.call(end)

    def _on_zygote_lost(self, zygote: ZygoteLine) -> None:
        if not zygote.is_own and self._zygotes.get(zygote.environment) is zygote:
            del self._zygotes[zygote.environment]
        expected, zygote.expected = zygote.expected, {}
        for actor, child in expected.items():
            if child.asked or child.is_killed or zygote.is_closing:
                self._parent.spawn_failed(child.request, "the zygote that was to fork it ended")
            else:
                self._parent.spawn_lost(child)  # 3" -> 1
                self._avoids_zygote.add(actor)
                self._waiting[actor] = child.as_spawn()
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
