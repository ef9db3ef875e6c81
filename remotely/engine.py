"""The engine interface: what handles and groups require of the engine that runs their objects.

There is one engine, `calling.engine.CallEngine`.  What differs between a cluster, Ray and this
process is its carrier (calling/carrier.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from remotely.futures.future import CallFuture
from remotely.reporting.cluster_status import ClusterStatus
from remotely.values.unpicklable import PartNames


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `@remote_class(...)` and `options(...)`.

    cpus          cores to reserve: 1, or none on a script's own cluster without `connect(cpus=)`
    gpus          GPUs to reserve, or a fraction of one (0.5); the actor sees no others
    memory        bytes, or "2GiB"; an actor that uses more is ended
    resources     custom resources to reserve, as {"license": 1}: see `--resource` and `connect`
    labels        what must be true of the machine, as ["ssd", "zone=a"]: see `join --label`
    pack          whether to place it on the fullest machine with room, not on the emptiest
    max_restarts  the limit of restarts in ten minutes of an actor that dies, with its arguments
    concurrency   the number of calls that run at the same time, on threads
    wait          whether a plain call blocks; if not, it returns its future
    env           environment variables, set before anything is imported
    python        the interpreter of the actor: a path on its machine, or a version, as "3.12"
    packages      of an environment that its machine makes for it, as ["gymnasium==0.29.1"]
    post_mortem   whether a call that raises waits a minute for `remotely debug`, with its frames
    name          unique on the cluster, for `get_actor`
    detached      whether the actor outlives its owner, until it is closed
    machine       the machine to place it on, by name or address; by default any
    near          the handle of an actor; place it on the same machine
    patience_s    seconds to wait for room, by default those of `connect`; 0 does not wait
    get_if_exists whether to return a handle of the actor with this name, if there is one
    """

    cpus: float | None = None
    gpus: float = 0
    memory: int | str = 0
    resources: Mapping[str, float] = {}
    labels: tuple[str, ...] = ()
    pack: bool = False
    max_restarts: int = 0
    concurrency: int = 1
    wait: bool = True
    env: dict[str, str] = {}
    python: str | None = None
    packages: tuple[str, ...] = ()
    post_mortem: bool = False
    name: str | None = None
    detached: bool = False
    machine: str | None = None
    near: Any = None
    patience_s: float | None = None
    get_if_exists: bool = False

    @property
    def cores(self) -> float:
        """The cores to reserve on a cluster that counts them."""
        return 1 if self.cpus is None else self.cpus


class Promises(msgspec.Struct, frozen=True, kw_only=True):
    """The promises that only some engines keep.  Tests skip by them, and the docs list them."""

    exit_status: bool = True
    own_process: bool = True
    output: bool = True
    deadlocks: bool = True
    keys: bool = True
    detached_restarts: bool = True
    dial_in: bool = True
    exact_doubt: bool = True
    shared_ownership: bool = True
    debugger: bool = True


PROMISED = {
    "exit_status": "`ActorDied` has the exit code or signal, last stderr lines and flight record",
    "own_process": "methods run on the main thread of a process; its child processes end with it",
    "output": "the terminal and `ps` show actors by their names; log records reach the client",
    "deadlocks": "an actor that waits for itself gets `Deadlock`; cycles of waits are reported",
    "keys": "each client has a key of its own, which can be revoked",
    "detached_restarts": "a detached actor is restarted even after its maker has ended",
    "dial_in": "existing processes can dial in with objects of theirs",
    "shared_ownership": "an actor whose handle another one has returned outlives that one",
    "debugger": "`remotely debug` attaches pdb at `breakpoint()`, and where a call fails",
    "exact_doubt": "`may_have_run` is false for every call that had not begun when its actor died",
}


class RemoteActor:
    """An engine's record of one actor.  All handles of the actor in a process share it.

    It holds no handle, so that the last handle can be seen to go; `face`, called with this, makes
    another one.
    """

    face: Callable[["RemoteActor"], Any]

    class_name = ""  # if the engine knows it without asking the actor

    # The sources that any client sent, and to which life of the actor.  Pickled handles carry it.
    sent: tuple[int, frozenset[str]] = (0, frozenset())

    def __init__(self, engine: "Engine", actor: str, name: str, owned: bool) -> None:
        self.engine = engine
        self.actor = actor
        self.name = name
        self.owned = owned

    def note_return(self) -> str:
        """Note that a handle leaves this process with a result.

        If its receiver must `hold` the actor, return the id of this client, which is told then.
        """
        return ""

    def __del__(self) -> None:
        self.engine.release(self)


class Prepared(NamedTuple):
    """A call with its arguments, pickled.

    send    sends it to an actor; may be called repeatedly, and in the background
    needs   the futures among its arguments: until they are done, it would wait at its actor
    """

    send: Callable[[RemoteActor], CallFuture[Any]]
    needs: Sequence[CallFuture[Any]] = ()


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Arrival(Protocol):
    """A request for an object whose process dials in; see `Engine.await_arrival`."""

    def result(self, timeout: float | None = None) -> RemoteActor:
        """Wait for the object.  Raises CallTimeout after `timeout` seconds."""

    def give_back(self) -> None:
        """Withdraw the request: another client may have the object."""


class Engine(Protocol):
    cluster: str  # the master's address and public key; empty without a cluster
    promises: Promises

    def place(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        """Make an object of each of these arguments, each in an actor of its own, all at a time.

        Makes all of them or raises.  Arguments that are in the list repeatedly are pickled once.
        """

    def call(
        self,
        remotes: Sequence[RemoteActor],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        """Call one method of each; without `background`, the caller is about to wait.

        A call whose outcome is lost is retried, at most `retries` times.
        """

    def prepare(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], names: PartNames = ""
    ) -> Prepared:
        """Pickle the arguments of a call, which is sent later.  Errors call them `names`."""

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        """Read an attribute of each."""

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        """Write an attribute of each."""

    def put(self, value: object) -> Any:
        """Return an object to pass instead of `value`; it arrives as the value."""

    def value_of(self, ref: object) -> Any:
        """Return the value of what `put` returned.  Raises TypeError for anything else."""

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        """End each actor after the calls made before, and wait until they have ended.

        Not for the actor that this process is.  With a grace of 0 they are killed immediately.
        """

    def release(self, remote: RemoteActor) -> None:
        """Handle the loss of the last handle here: end the actor if it is owned.  Never blocks."""

    def find(self, name: str) -> RemoteActor:
        """Return the actor with this name, borrowed."""

    def await_arrival(self, class_name: str) -> Arrival:
        """Request an actor of this class whose process has dialled in or will."""

    def borrow(self, actor: str, name: str) -> RemoteActor:
        """Return the actor of a handle that arrived from another process."""

    def hold(self, actor: str, name: str, giver: str) -> RemoteActor:
        """Return the actor of a handle that the client `giver` returned.

        It lives as long as what this returns.
        """

    def report(self, fresh: bool = True) -> ClusterStatus:
        """Return the machines, clients and actors of the cluster.

        With `fresh`, actors are queried for current activity and usage, which takes a while.
        """

    def timeline(self, seconds: float) -> dict[str, Any]:
        """Return what all processes do in the next seconds, in the format of Chrome's traces."""

    def shutdown(self) -> None:
        """End what this process owns, and leave the cluster."""
