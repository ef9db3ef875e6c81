"""The zygotes of a worker, which fork its actors, and the lines to them.

its own     runs the worker's interpreter, from the worker's start; another follows when it ends
others      one for each environment, of an interpreter and packages: begun by the first actor that
            is to be forked from it, it enters the environment (actor/environment.py), which may
            have to be made, and lives as long as it has actors
"""

import contextlib
import errno
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from remotely.machine import daemons, environments, processes
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.lease import START_AGAIN_S
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport.line import Line
from remotely.transport.loop import Loop
from remotely.worker.reaper import Child, kill_group

Environment = tuple[str, ...]  # the interpreter, then the packages
OWN: Environment = ("",)  # that of the worker


def environment_of(request: control.Request) -> Environment:
    """Return the environment in which an actor runs."""
    return (request.interpreter, *request.packages)


class ZygoteLine:
    """A zygote process, the line to it, and its actors.

    `heard` receives messages and their descriptors; `lost` is called when it has ended.  `tag`
    marks what makes the environment, so that it ends as the processes of an actor do.
    """

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        worker: str,
        heard: Callable[["ZygoteLine", object, list[OwnedFd]], None],
        lost: Callable[["ZygoteLine"], None],
        throttled: ThrottledLog,
        environment: Environment = OWN,
        tag: str = "",
    ) -> None:
        self.environment = environment
        self.expected: dict[str, Child] = {}  # to be forked
        self.living: set[int] = set()  # pids of those that it has forked
        self.is_closing = False  # no new zygote is started when this one ends
        self._loop = loop
        self._arguments = [str(folder), worker]
        self._heard = heard
        self._lost = lost
        self._throttled = throttled
        self._tag = tag
        self._decoder = control.Decoder("zygote > worker")
        self._preloaded: set[str] = set()
        self._start()

    @property
    def is_own(self) -> bool:
        return self.environment == OWN

    @property
    def is_needed(self) -> bool:
        return self.is_own or bool(self.expected or self.living)

    def preload(self, modules: list[str]) -> None:
        """Have the zygote import modules before the next fork."""
        if (new := set(modules) - self._preloaded) and self._line.is_open:
            self._preloaded |= new
            self._line.send(control.Preload(modules=sorted(new)))

    def fork(self, child: Child, descriptors: list[int]) -> None:
        """Request a process that gets these descriptors.  Raises OSError if there is no zygote."""
        if not self._line.is_open:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.preload(child.request.modules)
        self._line.send(control.Fork(actor=child.request.actor), descriptors)
        self.expected[child.request.actor] = child

    def stop(self) -> None:
        """Start no new zygote when this one ends, and do not wait for its pending forks."""
        self.is_closing = True
        if self.expected:  # it may hang in an import, or make its environment
            self._kill()  # `lost` will be called

    def close(self) -> None:
        """Kill the zygote, which may be in an import of many seconds.

        A process that it has just forked becomes a child of the worker, which kills it with the
        others.
        """
        self.is_closing = True
        self._kill()
        self._process.wait()
        self._line.close()

    def _kill(self) -> None:
        if self._process.returncode is None:  # else another group may have its number
            kill_group(self._process.pid)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            fd, module = str(theirs.fileno()), "remotely.actor.zygote"
            command = daemons.module_command(module, fd, *self._arguments)
            variables = {processes.TAG: processes.TAG_PLACEHOLDER}  # its forks write theirs
            if not self.is_own:
                there, variables = variables, {processes.TAG: self._tag}
                command, asked = entering(self.environment, fd, there, module, *self._arguments)
                variables |= asked
            # The zygote removes the folder if this process cannot.  It is a child of this process,
            # which inherits the actors if the zygote ends.
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # this process's own is read by its launcher
                start_new_session=True,
                env={**os.environ, **variables},
            )
            undo.pop_all()
        self._line = Line(ours, self._decoder)
        self._line.watch(self._loop, lambda *told: self._heard(self, *told), self._on_end)
        self._preloaded.clear()  # imported again on demand: one may have ended the last zygote

    def _on_end(self) -> None:
        self._process.returncode = 0  # the worker's Reaper waits for it, not `subprocess`
        if self.is_own and not self.is_closing:
            self._throttled.add("zygote", "the zygote ended; starting another", time.monotonic())
            self._start_again()
        self._lost(self)

    def _start_again(self) -> None:
        try:
            self._start()
        except OSError as error:
            sentence = f"no zygote could be started: {error.strerror}"
            self._throttled.add(sentence, sentence, time.monotonic())
            self._loop.after(START_AGAIN_S, self._start_again)


def entering(
    environment: Environment, fd: str, given: dict[str, str], module: str, *arguments: str
) -> tuple[list[str], dict[str, str]]:
    """Return the command that enters an environment to run a module, and its variables.

    `given` are variables for it there, in place of those here.
    """
    python, *packages = environment
    command = daemons.module_command("remotely.actor.environment", fd, python, module, *arguments)
    # Not as arguments, which everybody sees.
    return command, {environments.ASKED: json.dumps([packages, given])}
