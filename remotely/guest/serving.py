"""`remotely.serve`: an object of this process becomes an actor of a cluster.

The process dials in, so it may be behind NAT or a firewall.  It connects to the master, which tells
it a worker and who may call, and to that worker (line.py).

The object is served by what serves any actor (remotely/actor/), on the thread that has called
`serve`, so all that holds for handles holds for it.  If the connection ends, the actor has ended:
its callers are told, and the process dials in again, as another actor of the same name.
"""

import contextlib
import logging
import os
import secrets
import socket
import time
from pathlib import Path

from remotely import arguments
from remotely.actor.actor import Actor
from remotely.actor.servant import Servant
from remotely.actor.worker_line import WorkerLine
from remotely.api.handle import Handle
from remotely.api.remote_class import check_options
from remotely.engine import Options
from remotely.errors import (
    ActorDied,
    MasterLost,
    NameTaken,
    NoResources,
    NotConnected,
    RemotelyError,
    WorkerLost,
)
from remotely.guest.line import Line
from remotely.machine import folders, this_machine
from remotely.machine.guest_folder import guest_folder
from remotely.protocol import control
from remotely.protocol.ids import bound_id
from remotely.protocol.listening import Listening
from remotely.protocol.resources import Resources
from remotely.transport import activity, key_files
from remotely.transport.activity import OneByOne
from remotely.transport.fence import Fence
from remotely.transport.keys import MemberKey, fresh_pair
from remotely.values import sources

log = logging.getLogger("remotely")

REDIAL_S = (0.2, 5.0)  # from the first pause to the longest
NO_CLUSTER = (
    "serve needs the address of a cluster that 'remotely start' has started: "
    'remotely.serve(object, address="host:8010"), or REMOTELY_ADDRESS'
)


class BorrowedProcess:
    """It was there before, has a terminal, logging and `atexit` of its own, and goes on."""

    def begin(self, name: str, line: WorkerLine) -> None: ...

    def kill(self) -> None: ...

    def leave(self, servant: Servant, error: BaseException | None) -> None:
        servant.streams.close_all()


def serve_object(
    served: object,
    name: str,
    address: str | None,
    key: str | Path | None,
    concurrency: int,
    patience_s: float,
) -> str:
    """Do what serve.py says."""
    options = _checked(served, name, concurrency, patience_s)
    address = address or os.environ.get("REMOTELY_ADDRESS")
    if os.environ.get("REMOTELY_LOCAL") == "1" or not address:
        raise NotConnected(NO_CLUSTER)
    file = key or os.environ.get("REMOTELY_KEY") or folders.key_folder() / "worker.key"
    member = key_files.load_member(Path(file), "worker")
    sources.finder.install(first=False)  # for what callers pass whose code is not here
    sources.library.gather()  # and for clients that lack ours
    redial = _Redial(patience_s)
    while True:
        try:
            line = _serve_at(address, member, served, options, redial.before)
            return redial.reason_of(line)
        except _AGAIN as error:
            redial.wait(error)


# The cluster or the connection is away, or has not heard yet that the connection before has ended.
_AGAIN = (MasterLost, WorkerLost, NoResources, NameTaken)


class _Redial:
    """When to dial in again, and how often in vain."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.before = ""  # the nonce of the actor that it was last
        self._begin()

    def _begin(self) -> None:
        self._deadline = time.monotonic() + self._patience_s
        self._pause_s = REDIAL_S[0]
        self._told = ""

    def reason_of(self, line: Line) -> str:
        """Return why all is over and done with.  Raises the error, if it is not."""
        if line.was_hosted:
            self.before = line.nonce
            self._begin()
        if line.why is None:
            return "closed"
        if isinstance(line.why, ActorDied | NotConnected):  # it was killed; the cluster stopped
            return str(line.why)
        raise line.why

    def wait(self, error: RemotelyError) -> None:
        """Wait before the next try, or raise the error of the last."""
        if isinstance(error, NameTaken) and not self.before:
            raise error  # by another, and not by what was ours
        left_s = self._deadline - time.monotonic()
        if self._pause_s > left_s:
            raise error
        if str(error) != self._told:  # else it is what the last try met
            self._told = str(error)
            log.warning("%s. Trying again for %.0f s (patience_s)", error, left_s)
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, REDIAL_S[1])


def _serve_at(address: str, key: MemberKey, served: object, options: Options, before: str) -> Line:
    """Serve an object of a cluster, until it was closed or the connection has ended."""
    cls, nonce = type(served), secrets.token_hex(16)
    request = control.Request(
        actor=bound_id("guest", key.pair.public, nonce),
        name=options.name or f"{cls.__name__}-{os.getpid()}",
        named=bool(options.name),
        class_name=cls.__name__,
        owner="",
        job="",
        resources=Resources(cpus=0),
        python=this_machine.PYTHON,
        classes=[base.__name__ for base in cls.__mro__[:-1]],
    )
    pair = fresh_pair()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(guest_folder())
        Fence(folder, make=True).close()  # a lease that never ends
        path = str(folder / "calls")
        birth = control.Birth(
            request=request,
            master="",
            master_public=key.master_public,
            host=this_machine.identity(),
            machine=this_machine.machine_name(),
            ipc=f"ipc://{path}",
            listening=Listening(),
            folder=str(folder),
            gpus=[],
            public_key=pair.public,
            secret_key=pair.secret,
            client_keys=[],
        )
        location = control.Location(
            actor=request.actor,
            name=request.name,
            class_name=request.class_name,
            life=0,
            pid=os.getpid(),
            host=birth.host,
            machine=birth.machine,
            ipc=birth.ipc,
            tcp="",
            public_key=pair.public,
        )
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(theirs.close)
        try:
            ask = control.AskHost(nonce=nonce, before=before)
            line = Line(address, key, ask, ours, path)
        except BaseException:
            ours.close()
            raise
        why = "closed"
        try:
            with activity.new() as (_, page):
                process, threads = BorrowedProcess(), options.concurrency
                actor = Actor(birth, theirs, OneByOne(page), process, served, threads)
            line.start(control.Arrived(request=request, location=location))
            actor.run()
        except BaseException as error:
            why = f"the process that served it has left `serve`: {type(error).__name__}"
            raise
        finally:
            line.close(why)
    return line


def _checked(served: object, name: str, concurrency: int, patience_s: float) -> Options:
    if isinstance(served, type):
        raise TypeError(
            f"serve takes an object, and {served.__name__} is a class: serve({served.__name__}()), "
            f"or remotely.local({served.__name__}) if that is a remote class"
        )
    if issubclass(type(served), Handle):
        raise TypeError(f"serve takes an object of this process, and {served!r} is one elsewhere")
    arguments.number("patience_s", patience_s)
    return check_options(Options(), {"name": name, "concurrency": concurrency})
