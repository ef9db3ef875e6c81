"""The daemon of one machine: starts, watches and reaps the actors there.

It holds the truth about them: a master that was started again learns it from here.  It never
unpickles anything; a class and its arguments go from the client to the actor directly.

    a process ends         its pidfd says so at once; the zygote, or the kernel, says how
    it will not end        asked, then SIGTERM, then SIGKILL to its group
    it left others behind  its group is killed, and strays (we are their subreaper) by their tag
    we lose our lease      every actor is killed, before the master may place others (fence.py)
    we end                 every actor is killed, the folder is removed

Over 500 lines: an actor's birth, life and end are one table of children, watched by one loop.
"""

import contextlib
import ctypes
import errno
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from remotely import control, faults, host, pid_file, sockets
from remotely.complaints import Complaints
from remotely.control import MAX_MESSAGE
from remotely.errors import RemotelyError
from remotely.fence import LOOK_EVERY_S, WorkersFence
from remotely.keys import MemberKey, fresh_pair
from remotely.lease import FENCE_S, TERM_S
from remotely.link import Link
from remotely.loop import Loop, Timer
from remotely.output import Output, read_piece

log = logging.getLogger("remotely.worker")

AGAIN_S = 1.0  # after which that is tried again for which the machine had no room
STATUS_WAIT_S = 0.3  # how long a death waits for its exit status before it is told without
END_GRACE_S = 1.0  # for actors when the worker itself is asked to end
MEMORY_CHECK_S = 0.2  # an actor may take a gigabyte in that time
REPORT_EVERY_S = 5.0  # what `remotely status` shows of an actor's processor time and memory
LAST_WORD_MS = 500
_PR_SET_CHILD_SUBREAPER = 36


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher passes on standard input, as one line of JSON."""

    worker: str
    master: str
    key: dict[str, Any]
    tcp_host: str
    folder: str
    cpus: float
    gpus: int
    lifeline: bool
    pid_file: str = ""  # written by the launcher, removed by us


@dataclass
class Child:
    """One actor's process, as its parent sees it."""

    request: control.Request
    gpu_ids: list[int]
    location: control.Location
    socket: socket.socket
    output: Output
    pipes: dict[int, bool]
    since: float
    pid: int = 0
    pidfd: int = -1
    announced: bool = False
    status: int | None = None
    calls: int = 0
    asked: bool = False
    why: str = ""
    cpu: psutil.Process | None = None
    timers: list[Timer] = field(default_factory=list)


class Worker:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._key = MemberKey.from_dict(config.key)
        self._folder = Path(config.folder)
        self._logs = self._folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        (self._folder / "s").mkdir(exist_ok=True)
        self._fence = WorkersFence(self._folder, config.master)
        self._oom_kills = host.oom_kills()
        self._host = host.identity()
        self._machine = host.machine_name()
        self._client_keys: list[bytes] = []
        self._children: dict[str, Child] = {}
        self._statuses: dict[int, int] = {}
        self._log_files: dict[str, Path] = {}
        self._log_names: dict[str, str] = {}  # to the last actor of that name
        self._announced = False
        self._introduced = 0.0  # when we last said who we are
        self._preloaded: set[str] = set()
        self._leaving = False
        self._complaints = Complaints(log.warning)
        self._loop = Loop()
        self._start_zygote()
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
        self._loop.every(LOOK_EVERY_S, self._mind_fence)
        self._loop.every(REPORT_EVERY_S, self._report)
        self._loop.every(MEMORY_CHECK_S, self._check_memory)
        if config.lifeline:
            self._loop.watch(0, self._feel_lifeline)

    def run(self) -> None:
        """Serve until told to leave, then leave nothing behind."""
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self._loop.call(self._leave))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch(self._wake[0], self._reap)
        self._loop.run()
        # Not asked to end: it may be in the middle of an import of many seconds.  What it was about
        # to tell us of is ours now, and is killed like the rest.
        self._zygote_process.kill()
        self._zygote_process.wait()
        self._zygote.close()
        for child in self._children.values():
            _kill_group(child.pid)
        host.kill_tagged(self._config.worker)
        host.kill_descendants()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._config.pid_file:
            pid_file.leave(Path(self._config.pid_file))
        self._link.send(control.Left())
        # The master of an embedded cluster ends with us, and will not hear it.
        self._context.destroy(linger=0 if self._config.lifeline else LAST_WORD_MS)

    # --- the master -------------------------------------------------------------------------------

    def _register(self) -> control.Register:
        self._introduced = time.monotonic()
        return control.Register(
            worker=self._config.worker,
            python=host.PYTHON,
            host=self._host,
            machine=self._machine,
            address=self._config.tcp_host or "this machine",
            pid=os.getpid(),
            cpus=self._config.cpus,
            gpus=self._config.gpus,
            memory=host.memory(),
            actors=[self._status(c) for c in self._children.values() if c.announced],
        )

    def _hear_master(self, message: object) -> None:
        match message:
            case control.Registered(client_keys=keys):
                self._admit(keys)
                self._fence.renew(self._introduced)
                self._announce("REGISTERED")
            case control.Spawn(request=request, gpu_ids=gpu_ids):
                if not self._leaving:
                    self._try_to_spawn(request, gpu_ids)
            case control.End(actor=actor, grace_s=grace_s):
                if child := self._children.get(actor):
                    self._end(child, grace_s)
            case control.Preload(modules=modules):
                self._preload(modules)
            case control.ReadLog(ticket=ticket, actor=actor, offset=offset):
                self._read_log(ticket, actor, offset)
            case control.Leave():
                self._leave()

    def _admit(self, client_keys: list[bytes]) -> None:
        if client_keys != self._client_keys:
            self._client_keys = client_keys
            for child in self._children.values():
                with contextlib.suppress(OSError):
                    child.socket.send(control.write(control.Admit(client_keys=client_keys)))

    def _mind_fence(self) -> None:
        if self._fence.look():
            self._give_up_actors()

    def _give_up_actors(self) -> None:
        """Our lease is over: the master may place them elsewhere, and there must be one of each."""
        for child in self._children.values():
            if not child.why:
                child.why = f"its worker had no word from the master for {FENCE_S:.0f} s"
                _kill_group(child.pid)
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

    def _report(self) -> None:
        if self._children:
            actors = [self._figures(c) for c in self._children.values() if c.announced]
            self._link.send(control.Report(actors=actors))

    def _figures(self, child: Child) -> control.Figures:
        cpu, rss = 0.0, 0
        with contextlib.suppress(psutil.Error):
            child.cpu = child.cpu or psutil.Process(child.pid)
            cpu, rss = child.cpu.cpu_percent(), child.cpu.memory_info().rss
        return control.Figures(
            actor=child.request.actor, calls=child.calls, cpu_percent=cpu, rss=rss
        )

    def _status(self, child: Child) -> control.ActorStatus:
        figures = self._figures(child)
        return control.ActorStatus(
            location=child.location,
            request=child.request,
            gpu_ids=child.gpu_ids,
            calls=figures.calls,
            cpu_percent=figures.cpu_percent,
            rss=figures.rss,
            since=child.since,
        )

    def _read_log(self, ticket: int, actor: str, offset: int) -> None:
        actor = self._log_names.get(actor, actor)
        file = self._log_files.get(actor)
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

    # --- birth ------------------------------------------------------------------------------------

    def _start_zygote(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            command = host.module_command("remotely.zygote", str(theirs.fileno()))
            # The zygote removes the folder if we cannot; it is a child of ours, so that actors
            # that lose it fall to us.
            self._zygote_process = subprocess.Popen(
                [*command, str(self._folder), self._config.worker],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # ours goes to whoever started us
                start_new_session=True,
            )
            undo.pop_all()
        self._zygote = ours
        self._zygote_reader = control.Reader(control.FromZygote)
        self._loop.watch(ours.fileno(), self._hear_zygote)
        self._preloaded.clear()  # asked for again by who needs them: one may be what ended the last

    def _preload(self, modules: list[str]) -> None:
        if (new := set(modules) - self._preloaded) and self._zygote.fileno() >= 0:
            self._preloaded |= new
            self._zygote.send(control.write(control.Preload(modules=sorted(new))))

    def _try_to_spawn(self, request: control.Request, gpu_ids: list[int]) -> None:
        before = self._children.get(request.actor)
        if before is not None and before.request.life == request.life:
            return  # asked again, after a connection that broke
        if faults.ON:
            faults.at("worker.spawn")
        try:
            self._spawn(request, gpu_ids)
        except OSError as error:  # no descriptors, no memory, no processes
            self._not_born(request, str(error.strerror))

    def _not_born(self, request: control.Request, reason: str) -> None:
        why = f"its machine could not start a process: {reason}"
        log.warning("%s: %s", request.name, why)
        if child := self._children.get(request.actor):
            child.why = why
            self._bury(child)
        else:
            self._tell_end(request, why)

    def _spawn(self, request: control.Request, gpu_ids: list[int]) -> None:
        pair = fresh_pair()
        with contextlib.ExitStack() as undo:
            ours, theirs = (
                undo.enter_context(end)
                for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            )
            out_read, out_write = _pipe(undo)
            error_read, error_write = _pipe(undo)
            undo.pop_all()
        for fd in (out_read, error_read):
            os.set_blocking(fd, False)
        ipc = f"ipc://{self._folder}/s/{request.actor[:12]}.{request.life}"
        env = {**request.env, host.TAG: f"{self._config.worker}:{request.actor}"}
        birth = control.Birth(
            request=msgspec.structs.replace(request, env=env),
            master=self._config.master,
            master_public=self._key.master_public,
            host=self._host,
            machine=self._machine,
            ipc=ipc,
            tcp_host=self._config.tcp_host,
            folder=str(self._folder),
            gpu_ids=gpu_ids,
            public_key=pair.public,
            secret_key=pair.secret,
            client_keys=self._client_keys,
        )
        ours.send(control.write(birth))
        file = self._logs / f"{request.name}-{request.actor[:8]}.log"
        self._log_files[request.actor] = file
        self._log_names[request.name] = request.actor
        child = Child(
            request=request,
            gpu_ids=gpu_ids,
            location=control.Location(
                actor=request.actor,
                name=request.name,
                class_name=request.class_name,
                life=request.life,
                pid=0,
                host=self._host,
                machine=self._machine,
                ipc=ipc,
                tcp="",
                public_key=pair.public,
            ),
            socket=ours,
            output=Output(file, lambda is_error, text: self._tell(request, is_error, text)),
            pipes={out_read: False, error_read: True},
            since=time.time(),
        )
        self._children[request.actor] = child
        self._loop.watch(ours.fileno(), lambda: self._hear_actor(child))
        for fd, is_error in child.pipes.items():
            self._loop.watch(fd, self._reader_of(child, fd, is_error))
        descriptors = [theirs.fileno(), out_write, error_write]
        try:
            if request.env:
                self._execute(child, descriptors)
            else:
                if self._zygote.fileno() < 0:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                self._preload(request.modules)
                message = control.write(control.Fork(actor=request.actor))
                socket.send_fds(self._zygote, [message], descriptors)
        finally:
            theirs.close()
            os.close(out_write)
            os.close(error_write)

    def _execute(self, child: Child, descriptors: list[int]) -> None:
        """Start a new interpreter: the actor's variables hold from its first import on."""
        control_fd, out, error = descriptors
        process = subprocess.Popen(
            host.module_command("remotely.birth", str(control_fd)),
            pass_fds=[control_fd],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            env={**os.environ, **child.request.env},
            start_new_session=True,
        )
        process.returncode = 0  # we reap it ourselves
        self._born(child, process.pid, os.pidfd_open(process.pid))

    def _hear_zygote(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._zygote, MAX_MESSAGE, 1)
        if not data:
            self._zygote_is_gone()
            return
        match self._zygote_reader.read(data):
            case control.Forked(actor=actor, pid=pid):
                if child := self._children.get(actor):
                    self._born(child, pid, descriptors[0])
                else:
                    os.close(descriptors[0])
            case control.NotForked(actor=actor, why=why):
                if child := self._children.get(actor):
                    self._not_born(child.request, why)
            case control.Exited(pid=pid, status=status):
                self._statuses[pid] = status

    def _zygote_is_gone(self) -> None:
        self._loop.unwatch(self._zygote.fileno())
        self._zygote.close()
        if self._leaving:
            return
        log.warning("the zygote ended; starting another")
        for child in list(self._children.values()):
            if not child.pid:
                child.why = "the zygote that was to fork it ended"
                self._bury(child)
        self._restart_zygote()

    def _restart_zygote(self) -> None:
        try:
            self._start_zygote()
        except OSError as error:
            sentence = f"no zygote could be started: {error.strerror}"
            self._complaints.add(sentence, sentence, time.monotonic())
            self._loop.after(AGAIN_S, self._restart_zygote)

    def _born(self, child: Child, pid: int, pidfd: int) -> None:
        child.pid, child.pidfd = pid, pidfd
        child.location = msgspec.structs.replace(child.location, pid=pid)
        self._loop.watch(pidfd, lambda: self._see_end(child))

    def _hear_actor(self, child: Child) -> None:
        try:
            data = child.socket.recv(MAX_MESSAGE)
        except OSError:
            data = b""
        if not data:
            self._loop.unwatch(child.socket.fileno())
            return
        match control.Reader(control.FromActor).read(data):
            case control.Bound(tcp=tcp):
                child.location = msgspec.structs.replace(child.location, tcp=tcp)
                child.announced = True
                if faults.ON:
                    faults.at("worker.spawned")
                self._link.send(control.Spawned(location=child.location, since=child.since))
            case control.Count(calls=calls):
                child.calls = calls
            case control.Ending(why=why):
                child.asked = True
                child.why = child.why or why

    # --- life -------------------------------------------------------------------------------------

    def _reader_of(self, child: Child, fd: int, is_error: bool) -> Callable[[], None]:
        def read() -> None:
            if not child.output.read(fd, is_error):
                self._loop.unwatch(fd)

        return read

    def _tell(self, request: control.Request, is_error: bool, text: str) -> None:
        self._link.send(
            control.Output(name=request.name, job=request.job, error=is_error, text=text)
        )

    def _check_memory(self) -> None:
        for child in self._children.values():
            limit = child.request.memory
            if not limit or not child.pid or child.why:
                continue
            with contextlib.suppress(OSError):
                used = host.rss(child.pid)
                if used > limit:
                    child.why = (
                        f"out of memory: it used {used / 2**20:.0f} MiB, "
                        f"its limit is {limit / 2**20:.0f} MiB"
                    )
                    _kill_group(child.pid)

    # --- the end ----------------------------------------------------------------------------------

    def _end(self, child: Child, grace_s: float) -> None:
        """Ask, then make.  Calling again shortens the wait."""
        child.asked = True
        child.why = child.why or "closed"
        with contextlib.suppress(OSError):
            child.socket.send(control.write(control.Leave()))
        for timer in child.timers:
            timer.cancel()
        child.timers = [
            self._loop.after(grace_s, lambda: _signal_group(child.pid, signal.SIGTERM)),
            self._loop.after(grace_s + min(TERM_S, grace_s), lambda: _kill_group(child.pid)),
        ]

    def _see_end(self, child: Child) -> None:
        self._loop.unwatch(child.pidfd)
        os.close(child.pidfd)
        child.pidfd = -1
        self._reap()
        deadline = time.monotonic() + STATUS_WAIT_S

        def look() -> None:
            if child.pid in self._statuses or time.monotonic() > deadline:
                self._bury(child)
            else:
                self._loop.after(0.005, look)

        look()

    def _kill_left_of(self, actor: str) -> None:
        try:
            host.kill_tagged(f"{self._config.worker}:{actor}")
        except OSError:  # no descriptor is left, with which to look for them
            self._loop.after(AGAIN_S, lambda: self._kill_left_of(actor))

    def _reap(self) -> None:
        """Collect those whose parent we are: started, or inherited as subreaper."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake[0], 4096)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._statuses[pid] = status

    def _bury(self, child: Child) -> None:
        """Take away all that is left of an actor, and tell."""
        request = child.request
        status = self._statuses.pop(child.pid, None)
        if _exit_of(status) == "SIGKILL" and not child.why and host.oom_kills() > self._oom_kills:
            self._oom_kills = host.oom_kills()
            child.why = "out of memory: the kernel has ended a process of this machine"
        self._children.pop(request.actor, None)
        if child.pid:
            _kill_group(child.pid)
        for timer in child.timers:
            timer.cancel()
        for fd, is_error in child.pipes.items():
            child.output.drain(fd, is_error)
            self._loop.unwatch(fd)
            os.close(fd)
        self._loop.unwatch(child.socket.fileno())
        child.socket.close()
        with contextlib.suppress(OSError):
            os.unlink(child.location.ipc.removeprefix("ipc://"))
        if child.pid:
            self._kill_left_of(request.actor)
        if faults.ON:
            faults.at("worker.died")
        self._tell_end(
            request,
            child.why,
            asked=child.asked,
            exit=_exit_of(status),
            stderr=child.output.tail.decode(errors="replace"),
        )
        if self._leaving and not self._children:
            self._loop.stop()

    def _tell_end(self, request: control.Request, why: str, **more: Any) -> None:
        obituary = control.Obituary(actor=request.actor, life=request.life, why=why, **more)
        self._link.send(control.Died(obituary=obituary))

    def _feel_lifeline(self) -> None:
        if not os.read(0, 4096):
            self._loop.unwatch(0)
            self._loop.stop()

    def _leave(self) -> None:
        self._leaving = True
        for child in list(self._children.values()):
            self._end(child, END_GRACE_S)
        if not self._children:
            self._loop.stop()


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe2(os.O_CLOEXEC)
    for fd in ends:
        undo.callback(os.close, fd)
    return ends


def _exit_of(status: int | None) -> int | str | None:
    if status is None:
        return None
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else code


def _signal_group(pid: int, number: signal.Signals) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)


def _kill_group(pid: int) -> None:
    _signal_group(pid, signal.SIGKILL)


def main() -> None:
    """Be a worker, as the one line on standard input says."""
    line = sys.stdin.buffer.readline()
    if not line:  # whoever was to say it was interrupted
        return
    config = msgspec.json.decode(line, type=Config)
    logging.basicConfig(
        format=host.log_format("worker", not config.lifeline), level=logging.WARNING
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    host.raise_descriptor_limit()
    Worker(config).run()


if __name__ == "__main__":
    main()
