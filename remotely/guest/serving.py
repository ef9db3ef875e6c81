"""`remotely.serve`: an object of this process becomes an actor of a cluster.

The process dials in, so it may be behind NAT or a firewall (guest.py).  An ordinary `Actor` serves
the object, on the thread that has called `serve`, so handles work as with any other actor.  If the
actor ends because the cluster or the connection to it was lost, the process dials in again, as
another actor of the same name.
"""

import logging
import os
import time
from pathlib import Path

from remotely import arguments
from remotely.actor.actor import Actor
from remotely.api.handle import Handle
from remotely.api.remote_class import check_options
from remotely.engine import Options
from remotely.errors import (
    ActorDied,
    MasterLost,
    NameTaken,
    NoResources,
    NotConnected,
    WorkerLost,
)
from remotely.guest.guest import Guest
from remotely.machine import folders, this_machine
from remotely.machine.guest_folder import guest_folder
from remotely.protocol import control
from remotely.protocol.listening import Listening
from remotely.protocol.resources import Resources
from remotely.transport import activity, key_files
from remotely.transport.activity import OneByOne
from remotely.transport.fence import Fence
from remotely.transport.keys import MemberKey, fresh_pair
from remotely.values import sources

log = logging.getLogger("remotely")

REDIAL_S = (0.2, 5.0)  # the first and the longest pause before dialling in again
NO_CLUSTER = (
    "serve needs the address of a cluster that 'remotely start' has started: "
    'remotely.serve(object, address="host:8010"), or REMOTELY_ADDRESS'
)
# The cluster is unreachable, or has not yet seen the end of the last actor, which has the name.
_RETRIED = (MasterLost, WorkerLost, NoResources, NameTaken)


def serve_object(
    served: object,
    name: str | None,
    address: str | None,
    key: str | Path | None,
    concurrency: int | None,
    patience_s: float,
) -> str:
    """Implement `remotely.serve`, documented in serve.py."""
    options = _checked(served, name, concurrency, patience_s)
    arguments.not_empty("address", address)
    arguments.not_empty("key", key)
    address = address or os.environ.get("REMOTELY_ADDRESS")
    if os.environ.get("REMOTELY_LOCAL") == "1" or not address:
        raise NotConnected(NO_CLUSTER)
    file = key or os.environ.get("REMOTELY_KEY") or folders.key_folder() / "worker.key"
    member = key_files.load_member(Path(file), "worker")
    sources.finder.install(first=False)  # for classes of callers that are not importable here
    sources.library.gather("serves an object")  # for clients where this object's class is not
    before, last_error = "", ""
    pause_s, deadline = REDIAL_S[0], time.monotonic() + patience_s
    while True:
        try:
            guest = _serve_at(address, member, served, options, before)
            if guest.was_served:
                before, last_error = guest.nonce, ""
                pause_s, deadline = REDIAL_S[0], time.monotonic() + patience_s
            if guest.why is None:
                return "closed"
            raise guest.why
        except (ActorDied, NotConnected) as over:  # it was killed; the cluster was stopped
            return str(over)
        except _RETRIED as error:
            left_s = deadline - time.monotonic()
            is_name_taken = isinstance(error, NameTaken) and not before
            if is_name_taken or pause_s > left_s:
                raise
            if str(error) != last_error:  # else the last try failed likewise
                last_error = str(error)
                log.warning("%s. Trying again for %.0f s (patience_s)", error, left_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, REDIAL_S[1])


def _serve_at(address: str, key: MemberKey, served: object, options: Options, before: str) -> Guest:
    """Serve an object as one actor, until that has ended."""
    cls, pair = type(served), fresh_pair()
    with guest_folder() as folder, activity.new() as (_, page):
        Fence(folder, make=True).close()  # a lease that never ends
        activity.keep_own_metrics(page)
        guest = Guest(address, key, before, folder / "calls")
        why = "closed"
        try:
            request = control.Request(
                actor=guest.id,
                name=options.name or f"{cls.__name__}-{os.getpid()}",
                named=bool(options.name),
                class_name=cls.__name__,
                owner="",
                job="",
                resources=Resources(),
                python=this_machine.PYTHON,
                classes=[base.__name__ for base in cls.__mro__[:-1]],
            )
            birth = control.Birth(
                request=request,
                master="",
                master_public=key.master_public,
                host=this_machine.identity(),
                machine=this_machine.machine_name(),
                ipc=f"ipc://{folder / 'calls'}",
                listening=Listening(),
                folder=str(folder),
                gpus=[],
                public_key=pair.public,
                secret_key=pair.secret,
                admitted=[],
            )
            actor = Actor(birth, guest, OneByOne(page), served, options.concurrency)
            guest.start(request, birth.ipc, pair.public, page)
            actor.run()
        except BaseException as error:  # an exit too: callers are told why
            why = f"the process that served it has left `serve`: {type(error).__name__}"
            raise
        finally:
            activity.keep_own_metrics(None)
            guest.close(why)
    return guest


def _checked(
    served: object, name: str | None, concurrency: int | None, patience_s: float
) -> Options:
    if isinstance(served, type):
        raise TypeError(
            f"serve takes an object, and {served.__name__} is a class: serve({served.__name__}()), "
            f"or remotely.local({served.__name__}) if that is a remote class"
        )
    if issubclass(type(served), Handle):
        raise TypeError(
            f"serve takes an object of this process, and {served!r} is a handle to another process"
        )
    arguments.number("patience_s", patience_s)
    of_class = getattr(type(served), "__remotely__", Options())
    base = Options(concurrency=of_class.concurrency)
    return check_options(base, {"name": name, "concurrency": concurrency})
