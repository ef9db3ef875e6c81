"""The start of a daemon: launching it, sending its configuration, waiting until it is ready.

A daemon reads its configuration from one line of its standard input: keys never appear in an
argument list, which every user of the machine can read.  It reports that it is ready with one line
on its standard output.
"""

import contextlib
import os
import secrets
import select
import subprocess
import time
from pathlib import Path

import msgspec

from remotely.machine import daemons, this_machine
from remotely.machine.gpus import OfferedResources, choose
from remotely.protocol.configs import WorkerConfig
from remotely.protocol.ids import bound_id
from remotely.protocol.listening import Listening
from remotely.protocol.resources import parse_labels, parse_others
from remotely.transport.keys import MemberKey

START_S = 10.0  # until a daemon is ready: on a slow disk the first import takes seconds
END_S = 3.0

Daemon = subprocess.Popen[bytes]


def launch(module: str, stdout: int, stderr: int | None) -> Daemon:
    """Start a daemon in a session of its own, so that the terminal's Ctrl-C does not reach it."""
    return subprocess.Popen(
        daemons.module_command(module),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,  # None inherits fd 2, whatever sys.stderr is now
        start_new_session=True,
    )


def configure(daemon: Daemon, config: msgspec.Struct) -> None:
    assert daemon.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: `first_line` returns ""
        daemon.stdin.write(msgspec.json.encode(config) + b"\n")
        daemon.stdin.flush()


def close_input(daemon: Daemon) -> None:
    if daemon.stdin:
        with contextlib.suppress(OSError):
            daemon.stdin.close()


def wait_or_kill(daemon: Daemon, timeout_s: float) -> None:
    try:
        daemon.wait(max(0.1, timeout_s))
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def first_line(daemon: Daemon) -> str:
    """Return the line with which a daemon reports that it is ready; "" on timeout or its end."""
    assert daemon.stdout is not None
    fd, line = daemon.stdout.fileno(), b""
    deadline = time.monotonic() + START_S
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        if not (data := os.read(fd, 4096)):
            break
        line += data
    return line.decode(errors="replace").strip()


def worker_config(
    address: str,
    key: MemberKey,
    listening: Listening,
    folder: Path,
    offer: OfferedResources,
    file: str = "",
    grace_s: float = 0.0,
) -> WorkerConfig:
    nonce = secrets.token_hex(16)
    return WorkerConfig(
        worker=bound_id("worker", key.pair.public, nonce),
        nonce=nonce,
        master=address,
        key=key.to_dict(),
        listening=listening,
        folder=str(folder),
        cpus=this_machine.cores() if offer.cpus is None else offer.cpus,
        gpus=choose(offer.gpus),
        memory=offer.memory or 0,
        resources=dict(parse_others(offer.resources or {})),
        labels=list(parse_labels(offer.labels)),
        lifeline=not file,
        pid_file=file,
        grace_s=grace_s,
    )
