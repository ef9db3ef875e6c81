"""The seam between what users hold (handles, groups) and what runs their objects.

Handles know an Engine and nothing of ZeroMQ.  `client.client.Client` is the engine of a cluster,
`engines.in_process.InProcess` that of REMOTELY_LOCAL=1, `engines.ray.engine.RayEngine` that of Ray.
Another engine has to provide these fourteen verbs, and to say which promises it does not keep.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from remotely.futures.future import CallFuture
from remotely.reporting.cluster_status import ClusterStatus
from remotely.values.unpicklable import PartNames


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `@remote_class(...)` and `options(...)` take.

    cpus          cores to be reserved: 1, or none on a script's own cluster; also BLAS's threads
    gpus          GPUs to be reserved, or a part of one (0.5); none other is visible to the actor
    memory        bytes, or "2GiB"; beyond it the actor is ended
    resources     of your own, as {"license": 1}: of what `--resource` and `connect` offer
    max_restarts  how often in ten minutes an actor that died is restarted, with its arguments
    concurrency   how many calls run at a time, on threads
    wait          whether a plain call blocks; if not it returns its future
    env           environment variables, set before anything is imported
    name          unique on the cluster, for `get_actor`
    detached      whether the actor outlives its owner, until it is closed
    machine       on which it is to be, by its name or address; empty for any
    near          the handle of an actor on whose machine it is to be
    patience_s    how long it waits for room, if not as long as `connect` was told; 0 is not at all
    get_if_exists whether a handle of the actor with this name is returned, if there is one
    """

    cpus: float | None = None
    gpus: float = 0
    memory: int | str = 0
    resources: Mapping[str, float] = {}
    max_restarts: int = 0
    concurrency: int = 1
    wait: bool = True
    env: dict[str, str] = {}
    name: str = ""
    detached: bool = False
    machine: str = ""
    near: Any = None
    patience_s: float | None = None
    get_if_exists: bool = False

    @property
    def cores(self) -> float:
        """What is reserved where cores are counted."""
        return 1 if self.cpus is None else self.cpus


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine keeps, of what not every engine can.  Tests skip by it, and docs print it."""

    exit_status: bool = True
    own_process: bool = True
    output: bool = True
    deadlocks: bool = True
    keys: bool = True
    detached_restarts: bool = True
    dial_in: bool = True
    exact_doubt: bool = True


PROMISED = {
    "exit_status": "`ActorDied` has the exit code or signal, the last words and the flight record",
    "own_process": "methods run on the main thread of a process, and what it starts ends with it",
    "output": "the terminal and `ps` show actors by their names; log records reach the client",
    "deadlocks": "an actor that waits for itself gets `Deadlock`; waits in a circle are told",
    "keys": "each client has a key of its own, which can be revoked",
    "detached_restarts": "a detached actor is restarted, though its maker is gone",
    "dial_in": "processes that were there before dial in with objects of theirs",
    "exact_doubt": "`may_have_run` is false for every call that had not begun when its actor died",
}


class RemoteActor:
    """One actor as an engine knows it.  All handles of the actor in a process share it.

    `face`, called with this, makes another handle.  It is not a handle itself, since the end of the
    last handle must be noticed.
    """

    face: Callable[["RemoteActor"], Any]

    # Which life of the actor was sent which sources, by any client: its handles carry that along.
    sent: tuple[int, frozenset[str]] = (0, frozenset())

    def __init__(self, engine: "Engine", actor: str, name: str, owned: bool) -> None:
        self.engine = engine
        self.actor = actor
        self.name = name
        self.owned = owned

    def __del__(self) -> None:
        self.engine.release(self)


Prepared = Callable[[RemoteActor], CallFuture[Any]]


class Arrival(Protocol):
    """A question for an object whose process dials in; see `Engine.await_arrival`."""

    def result(self, timeout: float | None = None) -> RemoteActor:
        """Wait for it.  Raises CallTimeout after `timeout` seconds."""

    def give_back(self) -> None:
        """It is not wanted any more: another client may have it."""


class Engine(Protocol):
    cluster: str  # the master's address and public key; empty without a cluster
    promises: Promises

    def place(
        self,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        count: int,
    ) -> list[RemoteActor]:
        """Make `count` objects, each in a place of its own.  Makes all of them or raises."""

    def call(
        self,
        remotes: Sequence[RemoteActor],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        """Call one method of each; without `background` the caller is about to wait.

        A call whose outcome is lost is repeated, at most `retries` times.
        """

    def prepare(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], names: PartNames = ""
    ) -> Prepared:
        """Take the arguments of a call as they are now; return what sends it to an actor.

        That may be done again, and in the background.  `names` are what errors call the arguments.
        """

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        """Read an attribute of each."""

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        """Write an attribute of each."""

    def put(self, value: object) -> Any:
        """Return an object that you can pass in the place of `value`; it arrives as the value."""

    def value_of(self, ref: object) -> Any:
        """Return the value of what `put` returned.  Raises TypeError for anything else."""

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        """End each actor after the calls made before, and return when they have ended.

        Without grace they end at once, whatever they are doing.
        """

    def release(self, remote: RemoteActor) -> None:
        """The last handle in this process is gone: end the actor if it is owned.  Never blocks."""

    def find(self, name: str) -> RemoteActor:
        """Return the actor with this name, borrowed."""

    def await_arrival(self, class_name: str) -> Arrival:
        """Ask for an actor of this class whose process has dialled in, or will."""

    def borrow(self, actor: str, name: str) -> RemoteActor:
        """Return the actor of a handle that arrived from another process."""

    def report(self, fresh: bool = True) -> ClusterStatus:
        """Return the machines, clients and actors of the cluster.

        With `fresh`, the actors say what they do and use at this moment, which takes a while.
        """

    def shutdown(self) -> None:
        """End what this process owns, and leave the cluster."""
