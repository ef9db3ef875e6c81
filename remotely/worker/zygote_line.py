"""The zygotes of a worker, which fork its actors, and the lines to them.

its own     runs the worker's interpreter, from the worker's start; another follows when it ends
others      one for each environment, of an interpreter and packages: begun by the first actor that
            is to be forked from it, it enters the environment (actor/environment.py), which may
            have to be made, and lives as long as it has actors.  What is printed until it serves is
            that actor's

The end of a zygote is that of its process: its line may be open in what its interpreter started.
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
from typing import NamedTuple

from remotely.machine import daemons, environments, processes
from remotely.machine.owned_fd import OwnedFd
from remotely.machine.watched_process import WatchedProcess
from remotely.protocol import control
from remotely.protocol.lease import START_AGAIN_S
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport.line import Line
from remotely.transport.loop import Loop
from remotely.worker.reaper import Child, kill_group

LAST_MESSAGES = 10_000  # that are read of a zygote that has ended


class Environment(NamedTuple):
    """What an actor runs in, as it is now."""

    python: str = ""
    packages: tuple[str, ...] = ()
    stamps: tuple[tuple[int, int, int], ...] = ()  # of the files that these name

    @classmethod
    def of(cls, request: control.Request) -> "Environment":
        """Return that of an actor."""
        if not request.has_own_interpreter:
            return OWN
        python, packages = request.interpreter, tuple(request.packages)
        return cls(python, packages, environments.stamps(python, packages))


OWN = Environment()  # that of the worker


class ZygoteLine:
    """A zygote process, the line to it, and its actors.

    `heard` receives messages and their descriptors; `lost` is called when it has ended.  `prints`
    are descriptors for what is printed before it serves: in place of standard output and error.
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
        prints: tuple[int, int] | None = None,
    ) -> None:
        self.environment = environment
        self.expected: dict[int, Child] = {}  # to be forked, by the number of the request
        self.living: set[int] = set()  # pids of those that it has forked
        self.has_forked = False
        self.is_closing = False  # no new zygote is started when this one ends
        self._loop = loop
        self._arguments = [str(folder), worker]
        self._heard = heard
        self._lost = lost
        self._throttled = throttled
        self._worker = worker
        self._decoder = control.Decoder("zygote > worker")
        self._preloaded: set[str] = set()
        self._start(prints)

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

    def fork(self, number: int, child: Child, descriptors: list[int]) -> None:
        """Request a process that gets these descriptors.  Raises OSError if there is no zygote."""
        if not self._line.is_open:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.preload(child.request.modules)
        self._line.send(control.Fork(number=number), descriptors)
        self.expected[number] = child

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
        self._loop.unwatch(self._watched.fileno())
        self._line.close()

    def _kill(self) -> None:
        if self._process.returncode is None:  # else another group may have its number
            kill_group(self._process.pid)

    def _start(self, prints: tuple[int, int] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            fd, module = str(theirs.fileno()), "remotely.actor.zygote"
            command = daemons.module_command(module, fd, *self._arguments)
            variables = {processes.TAG: processes.TAG_PLACEHOLDER}  # its forks write theirs
            if not self.is_own:
                variables = {processes.TAG: processes.tag_without_actor(self._worker)}
                command, asked = entering(
                    self.environment, fd, {}, module, *self._arguments, "elsewhere"
                )
                variables |= asked
            # This process's own output is read by its launcher.
            out, error = prints or (subprocess.DEVNULL, None)
            # The zygote removes the folder if this process cannot.  It is a child of this process,
            # which inherits the actors if the zygote ends.
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                start_new_session=True,
                env={**os.environ, **variables},
            )
            undo.callback(self._process.wait)
            undo.callback(self._kill)
            self._watched = WatchedProcess(self._process.pid)
            undo.pop_all()
        self._line = Line(ours, self._decoder)
        self._line.watch(self._loop, lambda *told: self._heard(self, *told), lambda: None)
        self._loop.watch(self._watched.fileno(), self._on_end)
        self._preloaded.clear()  # imported again on demand: one may have ended the last zygote

    def _on_end(self) -> None:
        self._loop.unwatch(self._watched.fileno())
        for told in self._line.rest(LAST_MESSAGES):
            self._heard(self, *told)
        self._line.close()
        if not self.is_own:
            self._kill()  # what its interpreter has started
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
    script = "remotely.actor.environment"
    command = daemons.module_command(script, fd, environment.python, module, *arguments)
    # Not as arguments, which everybody sees.
    return command, {environments.ASKED: json.dumps([environment.packages, given])}
