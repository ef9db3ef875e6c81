"""The process of one actor as its worker sees it, and how it ends: asked, made to, reaped.

    1  asked      Leave: the actor lets its calls finish (`end`); a kill goes straight to 4
    2  in time    it says Ending, then Exiting, and has DRAIN_S for each (`leave_time`)
    3  too late   SIGTERM to its group
    4  later      SIGKILL to its group, TERM_S after that
    5  ended      its pidfd says so at once; the zygote, or the kernel, says how, within
                  STATUS_WAIT_S (`_see_end`, `exited`)
    6  reaped     which calls it had begun is read from the page that it shared, its row is removed,
                  its group is killed, its pipes and its socket are read to the end, the page is
                  closed, and the master is told (`reap`)
    7  strays     what it left behind in sessions of its own becomes a child of the worker, which
                  is their subreaper, as soon as nobody between them is left

So strays are found among our own children, by the tag in their environment, and not among all
processes of the machine; and one look serves all who died at that time.
"""

import contextlib
import mmap
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, auto

import psutil

from remotely.machine import memory_file, processes, signal_pipe, this_machine
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.control import MAX_MESSAGE
from remotely.protocol.lease import DRAIN_S, TERM_S
from remotely.protocol.numbers import MOST_FLIGHT_RECORD
from remotely.testing import faults
from remotely.transport import activity
from remotely.transport.loop import Loop, Timer
from remotely.worker.output import LogRelay, Output

CPU_AT_LEAST_S = 0.2  # its processor time is counted in hundredths of a second
CPU_AT_MOST_S = 5.0  # what it used before is not what it uses
# How long a death waits for its exit status before it is told without: for a zygote that is
# stopped or busy, since the worker inherits the children of one that has ended.  Clients wait for
# the obituary a little longer (OBITUARY_WAIT_S).
STATUS_WAIT_S = 1.0
LOOK_AGAIN_S = 1.0  # for strays, whom the kernel may leave out of a list while others end


class Stage(IntEnum):
    """How far an actor has come that ends by itself."""

    LIVES = auto()
    ENDS = auto()  # no call is begun any more
    EXITS = auto()  # the last reply was given


@dataclass
class Child:
    """One actor's process, as its parent sees it."""

    request: control.Request
    gpu_ids: list[int]
    seal: bytes  # of its placement
    location: control.Location
    socket: socket.socket
    output: Output
    log: LogRelay
    page: mmap.mmap  # what it runs: activity.py
    pipes: dict[int, bool]
    since: float
    client_keys: list[bytes]  # that it was told to admit
    pid: int = 0
    pidfd: int = -1
    announced: bool = False
    calls: int = 0
    asked: bool = False
    delegate: bytes = b""
    unsaid: deque[bytes] = field(default_factory=deque)  # it was stopped, and has yet to read
    why: str = ""
    process: psutil.Process | None = None
    cpu_percent: float = 0.0  # over some time before `cpu_at`
    cpu_at: float = 0.0
    timers: list[Timer] = field(default_factory=list)
    term_at: float | None = None  # when it is sent SIGTERM
    stage: Stage = Stage.LIVES
    is_killed: bool = False
    again: bool = False  # made from what its last life left (restart_file.py)
    status: int | None = None  # once it is known, as waitpid has it
    recorder: OwnedFd | None = None  # its flight recorder

    def receive(self) -> tuple[bytes, OwnedFd | None]:
        """Return its next message, and the descriptor that came with it."""
        data, found, _, _ = socket.recv_fds(self.socket, MAX_MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
        return data, OwnedFd(found[0]) if found else None

    def keep_recorder(self, memory: OwnedFd | None) -> None:
        """Keep the memory that is to be read when it has died; the first that it hands over."""
        if self.recorder is None and memory is not None and memory_file.is_one(memory.fd):
            self.recorder = memory

    def take_flight_record(self) -> bytes:
        """Return what it recorded, unless it ended in good order, and let go of the memory."""
        recorder, self.recorder = self.recorder, None
        is_closed = self.asked and not self.is_killed
        if recorder is None or is_closed:
            return b""
        return os.pread(recorder.fd, MOST_FLIGHT_RECORD, 0)

    def kill(self) -> None:
        """Kill it with all of its group; one that has not started yet, as soon as it has."""
        self.is_killed = True
        kill_group(self.pid)

    def as_spawn(self) -> control.Spawn:
        """Return what its worker was asked for."""
        return control.Spawn(
            request=self.request, gpu_ids=self.gpu_ids, again=self.again, seal=self.seal
        )

    def begin_figures(self, now: float) -> bool:
        """Begin to measure its processor time, if that was long ago; return whether it was."""
        is_due = now - self.cpu_at > CPU_AT_MOST_S
        if is_due:
            self._measure(now)
            self.cpu_percent = 0.0
        return is_due

    def figures(self) -> control.Figures:
        """Return what it uses, does and has done; nothing of a process that has ended."""
        rss, now = 0, time.monotonic()
        if now - self.cpu_at >= CPU_AT_LEAST_S:
            self._measure(now)
        if self.process is not None:
            with contextlib.suppress(psutil.Error):
                rss = self.process.memory_info().rss
        seen = activity.look(self.page)
        return control.Figures(
            actor=self.request.actor,
            calls=self.calls,
            cpu_percent=self.cpu_percent,
            rss=rss,
            running=seen.running,
            method=seen.method,
            method_s=seen.method_s,
        )

    def _measure(self, now: float) -> None:
        """Learn its processor time since the last look."""
        with contextlib.suppress(psutil.Error):
            self.process = self.process or psutil.Process(self.pid)
            self.cpu_percent = self.process.cpu_percent()
        self.cpu_at = now

    def as_status(self) -> control.ActorStatus:
        """Return all that a master has to know of it."""
        return control.ActorStatus(
            location=self.location,
            request=self.request,
            gpu_ids=self.gpu_ids,
            since=self.since,
            seal=self.seal,
            delegate=self.delegate,
        )


def exit_of(status: int | None) -> int | str | None:
    if status is None:
        return None
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else code


def signal_group(pid: int, number: signal.Signals) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)


def kill_group(pid: int) -> None:
    signal_group(pid, signal.SIGKILL)


class Reaper:
    """Takes a child out of `children` when it has ended, and tells `tell` of it.

    `drain` reads what it has left in its socket.
    """

    def __init__(
        self,
        loop: Loop,
        worker: str,
        children: dict[str, Child],
        drain: Callable[[Child], None],
        tell: Callable[[Child, control.Obituary], None],
    ) -> None:
        self._loop = loop
        self._worker = worker
        self._children = children
        self._drain = drain
        self._tell = tell
        self._living: dict[int, Child] = {}  # by pid; until they are reaped
        self._looks = 0  # for strays, that are still to come
        self._oom_kills = this_machine.oom_kills()
        self._signals = -1

    def listen(self) -> None:
        """Hear of children that end.  On the main thread, whose part signals are."""
        self._signals = signal_pipe.open_signal_pipe()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._loop.watch(self._signals, self._collect)

    def watch(self, child: Child) -> None:
        """Wait for the end of its process."""
        self._living[child.pid] = child
        self._loop.watch(child.pidfd, lambda: self._see_end(child))

    def exited(self, pid: int, status: int) -> None:
        """A process has been reaped, by us or by the zygote."""
        if (child := self._living.get(pid)) is None:  # a stray, which may have left others
            self._look_for_strays()
            return
        child.status = status
        if child.pidfd < 0:  # 5: seen to have ended before it was known how
            self.reap(child)  # -> 6

    def end(self, child: Child, grace_s: float, kill: bool = False, by: str = "") -> None:
        """Ask, then make.  Calling again may shorten the wait, and never prolongs it."""
        child.asked = True
        if kill:
            child.why = child.why or (f"killed by {by}" if by else "killed")
            child.kill()  # -> 4
            return
        child.why = child.why or "closed"
        with contextlib.suppress(OSError):
            child.socket.send(control.encode(control.Leave()))  # -> 1
        if child.term_at is None or time.monotonic() + grace_s < child.term_at:
            self._make_end(child, grace_s)

    def leave_time(self, child: Child, stage: Stage) -> None:
        """It ends by itself, and has come so far.  From now on it has DRAIN_S, at least; no more of
        it for saying the same again.

        How long its last calls and its `close` may take is for its client to say, if that asked for
        the end itself; so nobody is made to end who has not begun to exit.
        """
        if stage <= child.stage:
            return
        child.stage, now = stage, time.monotonic()  # -> 2
        if child.term_at is None:  # it ends by itself, and not because we have asked (1)
            if stage is Stage.EXITS:
                self._make_end(child, DRAIN_S)
        elif now < child.term_at < now + DRAIN_S:
            self._make_end(child, DRAIN_S)

    def _make_end(self, child: Child, grace_s: float) -> None:
        for timer in child.timers:
            timer.cancel()
        child.term_at = time.monotonic() + grace_s
        child.timers = [
            self._loop.after(grace_s, lambda: signal_group(child.pid, signal.SIGTERM)),  # -> 3
            self._loop.after(grace_s + TERM_S, child.kill),  # -> 4
        ]

    def reap(self, child: Child) -> None:
        """6: take away all that is left of an actor, and tell."""
        request = child.request
        ended = exit_of(child.status)
        if ended == "SIGKILL" and not child.why and this_machine.oom_kills() > self._oom_kills:
            self._oom_kills = this_machine.oom_kills()
            child.why = "out of memory: the kernel has ended a process of this machine"
        begun, all_begun = activity.begun(child.page)  # before `clear` closes the page
        self.clear(child)
        if faults.ON:
            faults.at("worker.died")
        self._tell(
            child,
            control.Obituary(
                actor=request.actor,
                life=request.life,
                asked=child.asked,
                exited=child.stage is Stage.EXITS,
                exit=ended,
                why=child.why,
                stderr=child.output.last_words(by_signal=isinstance(ended, str)),
                flight_record=child.take_flight_record(),
                begun=begun,
                all_begun=all_begun,
            ),
        )

    def clear(self, child: Child) -> None:
        """Take away all that is left of an actor, without a word."""
        if self._children.get(child.request.actor) is child:
            del self._children[child.request.actor]
        self._living.pop(child.pid, None)
        kill_group(child.pid)
        for timer in child.timers:
            timer.cancel()
        for fd, is_error in child.pipes.items():
            child.output.drain(fd, is_error)
            self._loop.unwatch(fd)
            os.close(fd)
        self._drain(child)
        self._loop.unwatch(child.socket.fileno())
        child.socket.close()
        child.page.close()
        with contextlib.suppress(OSError):
            os.unlink(child.location.ipc.removeprefix("ipc://"))
        self._look_for_strays()

    def kill_all(self) -> None:
        """Leave nothing behind: the worker ends."""
        for child in self._children.values():
            child.kill()
        processes.kill_tagged(self._worker)
        processes.kill_descendants()

    def _see_end(self, child: Child) -> None:
        self._loop.unwatch(child.pidfd)  # -> 5
        os.close(child.pidfd)
        child.pidfd = -1
        if child.status is None:
            self._collect()  # it may reap it
        if child.status is None:  # the zygote is its parent, and about to say it
            self._loop.after(STATUS_WAIT_S, lambda: self._reap_once(child))
        else:
            self._reap_once(child)  # -> 6

    def _reap_once(self, child: Child) -> None:
        if self._living.get(child.pid) is child:
            self.reap(child)

    def _collect(self) -> None:
        """Collect those whose parent we are: started, or inherited as subreaper."""
        signal_pipe.drain(self._signals)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.exited(pid, status)

    # --- strays -----------------------------------------------------------------------------------

    def _look_for_strays(self) -> None:
        """7: look soon, and once more a while later; one look serves all who ask till then."""
        if not self._looks:
            self._loop.call(self._look)
        self._looks = 2

    def _look(self) -> None:
        self._looks -= 1
        try:
            self._kill_strays()
        except OSError:  # no descriptor is left, with which to look for them
            self._looks = 1
        if self._looks:
            self._loop.after(LOOK_AGAIN_S, self._look)

    def _kill_strays(self) -> None:
        for pid in processes.children_of(os.getpid()):
            if pid in self._living:
                continue
            worker, _, actor = processes.tag_of(pid).partition(":")
            if worker == self._worker and actor not in self._children:
                processes.kill_tree(pid)
