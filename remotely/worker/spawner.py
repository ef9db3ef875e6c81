"""The start of actors' processes: forks of the worker's zygote, or new interpreters.

    no variables of its own    forked from the zygote (remotely/actor/zygote.py)
    variables of its own       a new interpreter: they hold from its first import on (startup.py)

Either way the child learns who it is to be from the first message on a socket of its own.

    1  asked      the request waits, and costs nothing (`ask`)
    2  prepared   its turn has come: there are a socket, pipes and a row, but no process (`_begin`)
    3  forked     the zygote has answered with a pidfd, or an interpreter was started (`_started`)
    3' failed     there is no room for a process: the parent is told why (`spawn_failed`)
    3" lost       the zygote ended first: back to 1, and the next try is a new interpreter, since
                  what the zygote was to import may be what ended it (`_lose_zygote`)

A zygote may be busy for a long time: it imports torch.  So at most FORKS_AT_ONCE requests are
between 2 and 3, and the others wait at 1: the socket to the zygote never fills, and neither of the
two ever waits for the other to read.  When the zygote ends, another is started, now or as soon as
the machine has room for it.
"""

import contextlib
import errno
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from remotely.machine import daemons, processes
from remotely.protocol import control
from remotely.protocol.control import MAX_MESSAGE, StoreAddress
from remotely.protocol.listening import Listening
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import activity
from remotely.transport.keys import fresh_pair
from remotely.transport.loop import Loop
from remotely.worker.output import LogFiles, LogRelay, Output
from remotely.worker.reaper import Child, kill_group

FORKS_AT_ONCE = 32  # a socket holds some 278 messages, and a process's limit of descriptors less
AGAIN_S = 1.0  # after which that is tried again for which the machine had no room


class ZygoteLine:
    """`hear` gets each message and what came with it; `lost` is told when no more will come."""

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        worker: str,
        hear: Callable[[object, list[int]], None],
        lost: Callable[[], None],
        throttled: ThrottledLog,
    ) -> None:
        self._loop = loop
        self._arguments = [str(folder), worker]
        self._hear = hear
        self._lost = lost
        self._throttled = throttled
        self._decoder = control.Decoder(control.FromZygote)
        self._preloaded: set[str] = set()
        self.is_closing = False  # no other is started when this one ends
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def preload(self, modules: list[str]) -> None:
        """Have modules imported before the next fork."""
        if (new := set(modules) - self._preloaded) and self._is_open:
            self._preloaded |= new
            with contextlib.suppress(OSError):  # its end is seen by `_receive`
                self._socket.send(control.encode(control.Preload(modules=sorted(new))))

    def fork(self, actor: str, descriptors: list[int]) -> None:
        """Ask for a process that is to have these.  Raises OSError where none can be had."""
        if not self._is_open:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        message = control.encode(control.Fork(actor=actor))
        socket.send_fds(self._socket, [message], descriptors)

    def stop(self) -> None:
        """Start no other zygote when this one ends."""
        self.is_closing = True

    def kill(self) -> None:
        """End it now; `lost` will be told."""
        self._process.kill()

    def close(self) -> None:
        """End the zygote.

        Not asked to end: it may be in the middle of an import of many seconds.  What it was about
        to tell of is a child of the worker's now, and is killed like the rest.
        """
        self._process.kill()
        self._process.wait()
        self._socket.close()

    @property
    def _is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            # The zygote removes the folder if we cannot; it is a child of ours, so that actors
            # that lose it fall to us.
            self._process = subprocess.Popen(
                daemons.module_command(
                    "remotely.actor.zygote", str(theirs.fileno()), *self._arguments
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # ours goes to whoever started us
                start_new_session=True,
                env={**os.environ, processes.TAG: processes.ROOM},
            )
            undo.pop_all()
        ours.setblocking(False)  # it has room by the spawner's rule; if not, we had rather be told
        self._socket = ours
        self._loop.watch(ours.fileno(), self._receive)
        self._preloaded.clear()  # asked for again by who needs them: one may be what ended the last

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE, 1)
        except ConnectionResetError:  # it ended before it had read all that we asked for
            data, descriptors = b"", []
        if data:
            self._hear(self._decoder.decode(data), descriptors)
            return
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._process.returncode = 0  # the worker reaps it, like all its children
        if not self.is_closing:
            self._throttled.add("zygote", "the zygote ended; starting another", time.monotonic())
            self._start_again()
        self._lost()

    def _start_again(self) -> None:
        try:
            self._start()
        except OSError as error:
            sentence = f"no zygote could be started: {error.strerror}"
            self._throttled.add(sentence, sentence, time.monotonic())
            self._loop.after(AGAIN_S, self._start_again)


@dataclass(frozen=True)
class Home:
    """What all actors of a worker are told alike."""

    worker: str
    folder: Path
    master: str
    master_public: bytes
    listening: Listening
    gpus: list[str]  # as CUDA knows them
    host: str
    machine: str
    stays: bool  # what is in the folder does, when a script has ended
    store: StoreAddress | None = None  # of this machine, for large values from others


class Parent(Protocol):
    """Whose children they are: it is told what becomes of them."""

    def prepared(self, child: Child) -> None:
        """There is something to be listened to, though no process yet."""

    def started(self, child: Child) -> None:
        """It has a process."""

    def spawn_lost(self, child: Child) -> None:
        """There is no process, and nothing ran: another child is prepared in its place."""

    def spawn_failed(self, request: control.Request, why: str) -> None:
        """There will be no process."""

    def exited(self, pid: int, status: int) -> None:
        """The zygote has reaped a process."""

    def said(self, request: control.Request, is_error: bool, text: str) -> None:
        """An actor has printed something."""

    def logged(self, request: control.Request, logged: control.Logged) -> None:
        """An actor has logged something."""


class Spawner:
    """Starts what it is asked for, one after the other."""

    def __init__(
        self,
        loop: Loop,
        home: Home,
        logs: LogFiles,
        parent: Parent,
        throttled: ThrottledLog,
    ) -> None:
        self.client_keys: list[bytes] = []  # that the next child admits
        self._loop = loop
        self._home = home
        self._logs = logs
        self._parent = parent
        self._waiting: dict[str, control.Spawn] = {}  # the first to come first
        self._expected: dict[str, Child] = {}  # of whose birth the zygote is to tell
        self._needs_no_zygote: set[str] = set()  # of those that wait: what one took along
        self._is_due = False  # `_serve` will be called
        self._numbers = itertools.count()
        (home.folder / "s").mkdir(parents=True, exist_ok=True)
        self._zygote = ZygoteLine(
            loop, home.folder, home.worker, self._hear_zygote, self._lose_zygote, throttled
        )

    def ask(self, spawn: control.Spawn) -> None:
        """Start an actor when its turn comes."""
        self._waiting[spawn.request.actor] = spawn  # -> 1
        self._serve_soon()

    def withdraw(self, actor: str) -> control.Request | None:
        """Return the request of an actor that waits to be started, and now will not be."""
        self._needs_no_zygote.discard(actor)
        spawn = self._waiting.pop(actor, None)
        return spawn.request if spawn else None

    @property
    def waiting(self) -> list[control.Spawn]:
        """Those whose turn has not come; of the others the parent was told."""
        return list(self._waiting.values())

    def _serve_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call(self._serve)

    def _serve(self) -> None:
        """1 -> 2 for one request, so that a thousand do not keep the loop from its other work."""
        self._is_due = False
        forks = len(self._expected) < FORKS_AT_ONCE
        may_begin = (s for s in self._waiting.values() if forks or not self._is_forked(s))
        if (spawn := next(may_begin, None)) is None:
            return
        del self._waiting[spawn.request.actor]
        try:
            self._begin(spawn)
        except Exception as error:  # whatever it is, somebody waits for an answer
            why = error.strerror if isinstance(error, OSError) else None
            why = why or f"{type(error).__name__}: {error}"
            self._parent.spawn_failed(spawn.request, why)  # -> 3'
        if self._waiting:
            self._serve_soon()

    def _begin(self, spawn: control.Spawn) -> None:
        is_forked = self._is_forked(spawn)
        self._needs_no_zygote.discard(spawn.request.actor)
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

    def _is_forked(self, spawn: control.Spawn) -> bool:
        return not spawn.request.env and spawn.request.actor not in self._needs_no_zygote

    def preload(self, modules: list[str]) -> None:
        """Have modules imported before the next fork."""
        self._zygote.preload(modules)

    def stop(self) -> None:
        """Start no other zygote when this one ends; what it was to fork is not waited for."""
        self._zygote.stop()
        if self._expected:  # it may hang in an import
            self._zygote.kill()

    def close(self) -> None:
        self._zygote.close()

    def _prepare(self, spawn: control.Spawn) -> tuple[Child, list[int]]:
        """Return a child without a process, and the descriptors that its process is to have."""
        with contextlib.ExitStack() as undo:
            ours, theirs = (
                undo.enter_context(end)
                for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            )
            out_read, out_write = _pipe(undo)
            error_read, error_write = _pipe(undo)
            for fd in (ours.fileno(), out_read, error_read):
                os.set_blocking(fd, False)
            child = self._child(spawn, ours, {out_read: False, error_read: True})
            undo.pop_all()
            return child, [theirs.detach(), out_write, error_write]

    def _child(self, spawn: control.Spawn, ours: socket.socket, pipes: dict[int, bool]) -> Child:
        """Say to the process that is to come who it is, and return it as we see it."""
        home, pair, request = self._home, fresh_pair(), spawn.request
        # A path for each: what a zygote forked that ended before it could say so may still bind it.
        ipc = f"ipc://{home.folder}/s/{request.actor[:12]}.{next(self._numbers)}"
        env = {**request.env, processes.TAG: self._tag_of(request)}
        birth = control.Birth(
            request=msgspec.structs.replace(request, env=env),
            master=home.master,
            master_public=home.master_public,
            host=home.host,
            machine=home.machine,
            ipc=ipc,
            listening=home.listening,
            folder=str(home.folder),
            gpus=[home.gpus[gpu] for gpu in spawn.gpu_ids],
            public_key=pair.public,
            secret_key=pair.secret,
            client_keys=self.client_keys,
            again=spawn.again,
        )
        with activity.new() as (page_fd, page):
            socket.send_fds(ours, [control.encode(birth)], [page_fd])
        output = Output(
            self._logs.begin(request), self._teller(request), self._loop.after, home.stays
        )
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
                host=home.host,
                machine=home.machine,
                ipc=ipc,
                tcp="",
                public_key=pair.public,
                store=home.store,
            ),
            socket=ours,
            output=output,
            log=LogRelay(output, lambda said: self._parent.logged(request, said), self._loop.after),
            page=page,
            pipes=pipes,
            since=time.time(),
            client_keys=self.client_keys,
            again=spawn.again,
        )

    def _tag_of(self, request: control.Request) -> str:
        return f"{self._home.worker}:{request.actor}"

    def _teller(self, request: control.Request) -> Callable[[bool, str], None]:
        return lambda is_error, text: self._parent.said(request, is_error, text)

    def _execute(self, child: Child, descriptors: list[int]) -> None:
        """Start a new interpreter: the actor's variables hold from its first import on."""
        control_fd, out, error = descriptors
        process = subprocess.Popen(
            daemons.module_command("remotely.actor.startup", str(control_fd)),
            pass_fds=[control_fd],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            env={**os.environ, **child.request.env, processes.TAG: self._tag_of(child.request)},
            start_new_session=True,
        )
        process.returncode = 0  # the worker reaps it itself
        self._started(child, process.pid, _pidfd(process.pid))

    def _started(self, child: Child, pid: int, pidfd: int) -> None:
        """-> 3."""
        child.pid, child.pidfd = pid, pidfd
        child.location = msgspec.structs.replace(child.location, pid=pid)
        if child.is_killed:  # before there was whom to kill
            child.kill()
        self._parent.started(child)

    # --- the zygote -------------------------------------------------------------------------------

    def _fork(self, child: Child, descriptors: list[int]) -> None:
        self._zygote.preload(child.request.modules)
        self._zygote.fork(child.request.actor, descriptors)
        self._expected[child.request.actor] = child

    def _hear_zygote(self, message: object, descriptors: list[int]) -> None:
        match message:
            case control.Forked(actor=actor, pid=pid):
                self._forked(self._expected.pop(actor), pid, descriptors)
            case control.NotForked(actor=actor, why=why):
                self._parent.spawn_failed(self._expected.pop(actor).request, why)
            case control.Exited(pid=pid, status=status):
                self._parent.exited(pid, status)
        if self._waiting:
            self._serve_soon()

    def _forked(self, child: Child, pid: int, descriptors: list[int]) -> None:
        try:
            # None came with the message if we have no room for one; its end would not be seen.
            pidfd = descriptors[0] if descriptors else _pidfd(pid)
        except OSError as error:
            self._parent.spawn_failed(child.request, str(error.strerror))
        else:
            self._started(child, pid, pidfd)

    def _lose_zygote(self) -> None:
        expected, self._expected = self._expected, {}
        for actor, child in expected.items():
            if child.asked or child.is_killed or self._zygote.is_closing:
                self._parent.spawn_failed(child.request, "the zygote that was to fork it ended")
            else:
                self._parent.spawn_lost(child)  # 3" -> 1
                self._needs_no_zygote.add(actor)
                self._waiting[actor] = child.as_spawn()
        if self._waiting:
            self._serve_soon()


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    for fd in ends:
        undo.callback(os.close, fd)
    return ends


def _pidfd(pid: int) -> int:
    """Return what tells of a process's end; end a process that could not be watched."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        kill_group(pid)
        raise
