"""Helpers for the cluster: connecting to one, making actors, discarding calls and actors."""

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

import remotely
from remotely.api import connection
from remotely.machine import environments, this_machine
from remotely_rl.errors import TrainingError, not_elsewhere

A = TypeVar("A")
R = TypeVar("R")

_connecting = threading.Lock()  # runs in several threads share the cluster of the first
_own: "weakref.ref[Any] | None" = None  # the engine of the cluster that this module has started
_cpus_ahead = 0  # CPUs of the cluster that `begin` has started, until a run connects to it

EMBEDDED_CPUS = 64  # least size of a cluster that training starts for itself
RETRY_S = 1.0  # between attempts while the cluster has no room


def connect(actors: int, address: str | None = None) -> None:
    """Use the cluster at `address`, or start one with room for `actors`.

    Without `address`, the cluster that this process is connected to is used, if any.  A cluster
    that this process starts (no address, or ray:local) has extra room, for the next run in this
    process.  `actors` = 0 means as many actors as there is room for: it then has one CPU per core.

    Raises TrainingError if the connection fails.
    """
    global _own, _cpus_ahead
    wanted = address or os.environ.get("REMOTELY_ADDRESS") or None
    with _connecting:
        cpus_ahead, _cpus_ahead = _cpus_ahead, 0
        if remotely.is_connected() and address is None:
            if not cpus_ahead or 0 < actors <= cpus_ahead:
                return
            remotely.shutdown()  # `begin` started it with another size
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


def check_interpreter(python: str | None, packages: Sequence[str]) -> None:
    """Raise TrainingError if the actors of this process will be here, and this machine lacks it.

    Other clusters have other machines, which may have it: there, the first actor tells.
    """
    if not _is_here_alone():
        return
    try:
        environments.check(python or "", packages)
    except environments.NoEnvironment as error:
        raise not_elsewhere(python, packages, error) from None


def _is_here_alone() -> bool:
    """Whether the cluster of this process is one of its own on this machine, or will be."""
    if remotely.is_connected():
        return connection.current().cluster.startswith("ipc://")
    is_named = os.environ.get("REMOTELY_ADDRESS") or os.environ.get("REMOTELY_LOCAL") == "1"
    return not is_named and not connection.is_idle_actor()


def begin() -> threading.Thread:
    """Start the cluster for the coming `connect` on a thread, if this process needs its own.

    The cluster's processes then import torch while this one does.  Errors are ignored: `connect`
    raises them again.
    """
    beginning = threading.Thread(target=_begin)  # no daemon: the cluster must be shut down
    beginning.start()
    return beginning


def _begin() -> None:
    global _own, _cpus_ahead
    with _connecting, contextlib.suppress(Exception):
        if not remotely.is_connected() and _is_here_alone():
            cpus = max(this_machine.cores(), EMBEDDED_CPUS)
            remotely.connect(cpus=cpus)
            _own, _cpus_ahead = weakref.ref(connection.current()), cpus


def is_own() -> bool:
    """Whether this process has started its cluster, which then has extra room."""
    return _own is not None and remotely.is_connected() and _own() is connection.current()


def cores() -> int:
    """Return the number of cores for actors: those of this machine, or the free ones of a cluster.

    This machine has no more than it has, whatever the cluster offers (`connect(cpus=64)`).
    """
    ours, name = this_machine.cores(), this_machine.machine_name()
    if is_own() or os.environ.get("REMOTELY_LOCAL") == "1":
        return ours
    free = {True: 0.0, False: 0.0}  # here, elsewhere
    for machine in remotely.status().machines:
        free[machine.machine == name] += machine.free_cpus
    return max(1, int(min(ours, free[True]) + free[False]))


class Making(Generic[A]):
    """An actor that is being made, on a thread of its own: an environment may hang.

    made    the actor, or the error of making it
    """

    def __init__(
        self, make: Callable[[], A], *, instead_of: Any = None, waits_for_room: bool = True
    ) -> None:
        """Close the actor before it, if any, and call `make`, again and again without room."""
        self._make = make
        self._instead_of = instead_of
        self._waits_for_room = waits_for_room
        self._is_given_up = False
        self.made: Future[A] = on_a_thread(self._run)

    def give_up(self) -> None:
        """Wait for room no longer."""
        self._is_given_up = True

    def close(self, timeout_s: float = 0.0) -> None:
        """Close the actor: now, if it is made within this time, otherwise once it is."""
        self.give_up()
        wait([self.made], timeout_s)
        if self.made.done():
            _close_made(self.made)
        else:
            self.made.add_done_callback(_close_made)

    def _run(self) -> A:
        if self._instead_of is not None:
            close(self._instead_of)
            self._instead_of = None
        while True:
            try:
                return self._make()
            except remotely.NoResources:
                if self._is_given_up or not self._waits_for_room:
                    raise
                time.sleep(RETRY_S)


def _close_made(made: "Future[Any]") -> None:
    if made.exception() is None:
        close(made.result())


def discard(call: "Future[Any]") -> None:
    """Ignore the result of a call.

    Retrieves its error, which remotely would otherwise report as unretrieved.
    """
    call.add_done_callback(lambda done: done.cancelled() or done.exception())


def close(actor: Any) -> None:
    """Close an actor that may be dead."""
    with contextlib.suppress(remotely.RemotelyError):
        remotely.close(actor)


def on_a_thread(function: Callable[[], R]) -> "Future[R]":
    """Call a function on a thread of its own, and do not wait for it.

    A daemon: it may still wait for room, or for a hung environment, when the run ends.  Not an
    executor's, which takes no work once the main thread has ended: the run may be in another one.
    """
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="cluster", daemon=True).start()
    return future


def all_at_once(functions: Iterable[Callable[[], object]]) -> None:
    """Call functions at the same time, and wait for all: closing a hung actor takes seconds."""
    for call in [on_a_thread(function) for function in functions]:
        call.exception()
