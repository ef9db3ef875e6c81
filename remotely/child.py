"""One actor's process, as its worker sees it, and how it is made to end."""

import contextlib
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass, field

import psutil

from remotely import control
from remotely.log_relay import LogRelay
from remotely.loop import Timer
from remotely.output import Output


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
    cpu: psutil.Process | None = None
    timers: list[Timer] = field(default_factory=list)
    term_at: float | None = None  # when it is sent SIGTERM
    is_killed: bool = False
    again: bool = False  # made from what its last life left (recipe.py)
    status: int | None = None  # once it is known, as waitpid has it

    def kill(self) -> None:
        """Kill it with all of its group; one that is not born yet, as soon as it is."""
        self.is_killed = True
        kill_group(self.pid)

    def as_spawn(self) -> control.Spawn:
        """Return what its worker was asked for."""
        return control.Spawn(
            request=self.request, gpu_ids=self.gpu_ids, again=self.again, seal=self.seal
        )

    def figures(self) -> control.Figures:
        """Return what it uses and has done; nothing of a process that has ended."""
        cpu, rss = 0.0, 0
        with contextlib.suppress(psutil.Error):
            self.cpu = self.cpu or psutil.Process(self.pid)
            cpu, rss = self.cpu.cpu_percent(), self.cpu.memory_info().rss
        return control.Figures(actor=self.request.actor, calls=self.calls, cpu_percent=cpu, rss=rss)

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
