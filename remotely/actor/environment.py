"""The start of an actor in an environment of its own: it is made if need be, then entered by exec.

    REMOTELY_ENVIRONMENT=... python -m remotely.actor.environment CONTROL_FD PYTHON

The process has the actor's socket, pipes and environment variables already, and becomes the actor.
Only those variables are kept from it until then that belong to the other interpreter.
What is worth saying is printed, as the actor prints.

    1  made      the environment is there; while it is made, the worker hears that this goes on
    1' refused   it cannot be made: NotBound, and no other machine is tried
    2  entered   exec: startup.py reads the Birth that waits in the socket
"""

import json
import os
import socket
import sys
import time

from remotely.errors import RemotelyError
from remotely.machine import environments
from remotely.protocol import control
from remotely.transport.line import Line

EVERY_S = 5.0  # how often the worker hears that this goes on


def main(control_fd: str, python: str) -> int:
    """Become the actor; return the exit code of a process that cannot."""
    line = Line(socket.socket(fileno=int(control_fd)), control.Decoder("worker > actor"))
    told_at = time.monotonic()

    def busy(what: str) -> None:
        nonlocal told_at
        if what:
            print(what, flush=True)
        if time.monotonic() >= told_at + EVERY_S:
            told_at = time.monotonic()
            line.send(control.Preparing())

    packages, given = json.loads(os.environ.pop(environments.ASKED))
    arguments = ["-m", "remotely.actor.startup", control_fd]
    try:
        command, variables = environments.command(python, packages, given, arguments, busy)
        os.execve(command[0], command, variables)  # -> 2
    except (RemotelyError, OSError) as error:
        line.send(control.NotBound(why=str(error), is_refused=True))  # -> 1'
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
