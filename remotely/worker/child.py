"""One actor's process, as its worker sees it, and how it is made to end."""

import contextlib
import mmap
import os
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum, auto

import psutil

from remotely.machine import memory_file
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.control import MAX_MESSAGE
from remotely.protocol.numbers import MOST_FLIGHT_RECORD
from remotely.transport import activity
from remotely.transport.loop import Timer
from remotely.worker.log_relay import LogRelay
from remotely.worker.output import Output

CPU_AT_LEAST_S = 0.2  # its processor time is counted in hundredths of a second
CPU_AT_MOST_S = 5.0  # what it used before is not what it uses


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
        """Kill it with all of its group; one that is not born yet, as soon as it is."""
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
        figures = self.figures()
        return control.ActorStatus(
            location=self.location,
            request=self.request,
            gpu_ids=self.gpu_ids,
            calls=figures.calls,
            cpu_percent=figures.cpu_percent,
            rss=figures.rss,
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
