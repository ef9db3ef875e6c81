"""The cluster as sampling uses it: one to run on, and ends of calls and actors."""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import remotely
from remotely.api import connection
from remotely.machine import this_machine
from remotely_rl.errors import TrainingError

A = TypeVar("A")

_connecting = threading.Lock()  # runs in several threads share the cluster of the first
_own: "weakref.ref[Any] | None" = None  # to the engine of the cluster that `connect` has started
_cpus_ahead = 0  # of the cluster that `begin` has started, until a run connects to it

EMBEDDED_CPUS = 64  # of a cluster that training starts for itself, at least
RETRY_S = 1.0  # after the cluster had no room


def connect(actors: int, address: str | None = None) -> None:
    """Use the cluster at `address`, or start one with room for `actors`.

    One that this process starts for itself, by no address or by ray:local, has room for many more,
    because the next run of this process may want them.  For 0 actors, which means as many as there
    is room for, it has one CPU for each core.  If this process has a cluster, that is used.

    Raises TrainingError if there is no connection to it.
    """
    global _own, _cpus_ahead
    wanted = address or os.environ.get("REMOTELY_ADDRESS") or None
    with _connecting:
        cpus_ahead, _cpus_ahead = _cpus_ahead, 0
        if remotely.is_connected() and address is None:
            if not cpus_ahead or 0 < actors <= cpus_ahead:
                return
            remotely.shutdown()  # it was started before anybody knew for how many
        try:
            if wanted in (None, connection.RAY_HERE):
                cores = this_machine.cores()
                cpus = max(actors, cores, EMBEDDED_CPUS) if actors else cores
                remotely.connect(wanted, cpus=cpus)
                _own = weakref.ref(connection.current())
            else:
                remotely.connect(wanted)
        except (remotely.RemotelyError, ValueError) as error:
            raise TrainingError(str(error)) from error


def begin() -> threading.Thread:
    """Start the cluster that a run is going to `connect` to, on a thread, where it needs its own.

    It imports torch for its actors while this process does.  What goes wrong, `connect` tells.
    """
    beginning = threading.Thread(target=_begin)  # no daemon: what it has started is to be ended
    beginning.start()
    return beginning


def _begin() -> None:
    global _own, _cpus_ahead
    with _connecting, contextlib.suppress(Exception):
        named = os.environ.keys() & {"REMOTELY_ADDRESS", "REMOTELY_LOCAL"}
        if not named and not remotely.is_connected():
            cpus = max(this_machine.cores(), EMBEDDED_CPUS)
            remotely.connect(cpus=cpus)
            _own, _cpus_ahead = weakref.ref(connection.current()), cpus


def is_own() -> bool:
    """Whether the cluster of this process is one that `connect` has started, with room to spare."""
    return _own is not None and remotely.is_connected() and _own() is connection.current()


def when_there_is_room(make: Callable[[], A], gives_up: Callable[[], bool]) -> A:
    """Make an actor as soon as the cluster has room for it: a machine may join.

    Raises NoResources if there is none and nobody wants the actor any more.
    """
    while True:
        try:
            return make()
        except remotely.NoResources:
            if gives_up():
                raise
            time.sleep(RETRY_S)


def discard(call: "Future[Any]") -> None:
    """Stop waiting for a call.

    Its error is retrieved when it comes, or remotely would report that nobody did.
    """
    call.add_done_callback(lambda done: done.cancelled() or done.exception())


def close(actor: Any) -> None:
    """Close an actor, which may be gone already."""
    with contextlib.suppress(remotely.RemotelyError):
        remotely.close(actor)
