"""The entry into an environment: it is made if need be, then entered by exec.

    REMOTELY_ENVIRONMENT=... python -m remotely.actor.environment FD PYTHON MODULE ARGUMENTS

The process is to become a module there that serves the worker over FD: an actor with variables of
its own (startup.py), or the zygote of the others (zygote.py).  Those variables are kept from it
until then that belong to the other interpreter.

    1  made      the environment is there; while it is made, the worker hears that this goes on
    1' refused   it cannot be made: NotBound, and no other machine is tried
    2  entered   exec: what the worker has sent meanwhile waits in the socket
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


def main(fd: str, python: str, module: str, *arguments: str) -> int:
    """Become the module; return the exit code of a process that cannot."""
    line = Line(socket.socket(fileno=int(fd)), control.Decoder("worker > actor"))
    told_at = time.monotonic()

    def busy(what: str) -> None:
        nonlocal told_at
        if what or time.monotonic() >= told_at + EVERY_S:
            told_at = time.monotonic()
            line.send(control.Preparing(what=what))

    packages, given = json.loads(os.environ.pop(environments.ASKED))
    run = ["-m", module, fd, *arguments]
    try:
        command, variables = environments.command(python, packages, given, run, busy)
        os.execve(command[0], command, variables)  # -> 2
    except (RemotelyError, OSError) as error:
        line.send(control.NotBound(why=str(error), is_refused=True))  # -> 1'
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
