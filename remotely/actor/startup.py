"""The start of an actor process: what must be set before any user module is imported.

The process is forked from the zygote, or started as `python -m remotely.actor.startup`.  Either way
its worker passes it a socket, over which it receives the description of its actor (`Birth`).
"""

import atexit
import contextlib
import faulthandler
import importlib
import multiprocessing.spawn  # noqa: F401 - in the zygote: each actor sets it up (sources.py)
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import zmq

from remotely.actor import generators, preparation
from remotely.actor.actor import Actor
from remotely.api import current_actor, flight_recorder
from remotely.errors import RemotelyError
from remotely.machine import gpus, processes
from remotely.protocol import control
from remotely.testing import faults
from remotely.transport import activity
from remotely.transport.activity import OneByOne
from remotely.transport.line import Line
from remotely.values import sources
from remotely.values.maker_state import THREAD_VARIABLES

_FROM_WORKER = control.Decoder("worker > actor")
MOST_KEPT = 1_000  # messages to a stopped worker; later ones are dropped


def main(control_fd: int, stdout_fd: int = 1, stderr_fd: int = 2) -> int:
    """Run the actor that the worker describes; return the exit code of the process."""
    if stdout_fd != 1:
        os.setsid()  # a process group of its own, which the worker can kill as a whole
        for fd, standard in ((stdout_fd, 1), (stderr_fd, 2)):
            os.dup2(fd, standard)
            os.close(fd)
    if faults.ON:
        faults.at("actor.birth")
    line = Line(socket.socket(fileno=control_fd), _FROM_WORKER, MOST_KEPT)
    if (first := line.receive()) is None:
        return 1  # the worker is gone
    birth, (page,) = first
    assert isinstance(birth, control.Birth)
    _prepare_process(birth)
    flight_recorder.enable(line.send)
    preparation.send_records(birth.request.name, line.send)
    try:
        actor = Actor(birth, line, OneByOne(activity.received(page.take())))
    except (
        RemotelyError,
        OSError,
        zmq.ZMQError,
    ) as error:  # no port is free, or the folder is gone
        line.send(control.NotBound(why=str(error)))
        return 1
    return actor.run()


def _prepare_process(birth: control.Birth) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    atexit._clear()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()  # so that ActorDied shows the stack of a native crash
    request = birth.request
    processes.write_tag(request.env.get(processes.TAG, ""))
    os.environ[gpus.VARIABLE] = ",".join(birth.gpus)
    os.environ.update(request.env)
    current_actor.become(
        request.actor, request.name, request.class_name, request.life, birth.machine
    )
    current_actor.show_as(request.name, request.class_name)
    if not request.env.keys() & set(THREAD_VARIABLES):  # else the user has set them
        set_threads(max(1, int(request.resources.cpus)))
    with contextlib.suppress(OSError):  # the OOM killer takes an actor rather than its worker
        Path("/proc/self/oom_score_adj").write_text("1000")
    generators.renew()


def set_threads(count: int) -> None:
    """Limit the threads of BLAS and OpenMP libraries, loaded now or later."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(count)
    if _pools is not None and count != 1:
        _pools.limit(limits=count)
    if (torch := sys.modules.get("torch")) and count != 1:
        torch.set_num_threads(count)


def warm() -> None:
    """In the zygote, after its imports: do work once that every actor would otherwise repeat.

    This saves time and memory: pages touched here are shared, pages touched by a fork are copied.
    """
    global _pools
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")  # numpy loads it at its first use
        import threadpoolctl  # noqa: PLC0415 - it inspects the libraries loaded by now

        _pools = threadpoolctl.ThreadpoolController()
        _pools.limit(limits=1)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        with torch.no_grad():  # the first operation initialises kernels and tables
            torch.nn.Linear(8, 8)(torch.ones(1, 8)).sum().item()
    sources.library.look()


_pools: Any = None  # the ThreadpoolController of the zygote


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
