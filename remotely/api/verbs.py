"""The toolkit's verbs: functions, because all names on a handle belong to the user."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from remotely import arguments
from remotely.api import connection
from remotely.api.found_handle import class_of, found_handle, handle_as
from remotely.api.group import Group
from remotely.api.handle import Handle, Method, end, handle_of
from remotely.arguments import suggests
from remotely.engine import Engine
from remotely.futures.future import CallFuture, completed, failed
from remotely.futures.reference import Put, Reference
from remotely.protocol.lease import DRAIN_S
from remotely.protocol.spans import LONGEST_TIMELINE_S
from remotely.reporting.cluster_status import ActorStatus, ClusterStatus
from remotely.values.unpicklable import NotToBePickled

T = TypeVar("T")
P = ParamSpec("P")


def submit(method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> CallFuture[T]:
    """Send a call and return its future: `submit(actor.sample)`, which type checkers understand.

    The method of a plain object runs immediately, in this process.
    """
    if isinstance(method, Method):
        return method.submit(*args, **kwargs)  # type: ignore[no-any-return]
    try:
        return completed(method(*args, **kwargs))
    except Exception as error:
        return failed(error)


@suggests
def close(target: Any, grace_s: float = DRAIN_S) -> None:
    """End an actor or a group after the calls made before; the class's own `close` is called.

    An actor that has not ended after `grace_s` seconds is killed.  Idempotent.

    A method may close its own actor, except on Ray: that returns at once, and the actor ends when
    its running methods have returned, however long they take.
    """
    arguments.number("grace_s", grace_s)
    end(_handles_of(target), grace_s)


def kill(target: Any) -> None:
    """Kill an actor or a group immediately.

    Pending calls fail with ActorDied.  The class's own `close` is not called, and `max_restarts`
    does not restart the actor.
    """
    end(_handles_of(target), 0.0)


def status() -> ClusterStatus:
    """Return the machines, clients and actors of the cluster, and the number of queued requests."""
    return connection.current().report()


def timeline(seconds: float = 10.0) -> dict[str, Any]:
    """Record what all processes of the cluster do in the next seconds; return Chrome's trace of it.

    Written as JSON, `json.dump(remotely.timeline(2), file)`, it opens in https://ui.perfetto.dev.
    `remotely timeline` does so from a terminal.  Other threads go on meanwhile.

    Raises RemotelyError while another one is recorded, and where there is no cluster: with
    REMOTELY_LOCAL=1, and on Ray.
    """
    arguments.number("seconds", seconds)
    if not 0 < seconds <= LONGEST_TIMELINE_S:
        raise ValueError(f"seconds={seconds} must be above 0, and at most {LONGEST_TIMELINE_S:g}")
    return connection.current().timeline(seconds)


def actors() -> list[ActorStatus]:
    """Return the actors of the cluster, as `status().actors`: name, class, machine, what it runs.

    `get_actor(name)` gives a handle of one.
    """
    return status().actors


@overload
def get_actor(name: str) -> Any: ...
@overload
def get_actor(name: str, cls: type[T]) -> T: ...
def get_actor(name: str, cls: type | None = None) -> Any:
    """Return a borrowed handle of the actor with this name.

    `cls`, its class or a base class, gives type checkers the type of the handle.  Classes are
    compared by name, because the actor may have imported its class from another place.

    Raises NameError if there is no such actor, and TypeError if it is of another class.  Without
    `cls`, the handle asks the actor for its class when it is first used, so that waits for a busy
    actor.  With its very class, nothing waits; with a base class, this does.
    """
    arguments.of_type("name", name, str, "a string")
    if cls is not None:
        arguments.of_type("cls", cls, type, "a class")
    remote = connection.current().find(name)
    return found_handle(remote) if cls is None else handle_as(cls, remote)


def borrow(cls: type, actor: str, name: str) -> Any:
    """Return a borrowed handle of an actor of this class."""
    return handle_of(cls, connection.current().borrow(actor, name))


def put(value: T) -> T:
    """Pickle a value once, to pass it many times: what this returns arrives as the value."""
    return connection.current().put(value)  # type: ignore[no-any-return]


def ref(future: Future[T]) -> T:
    """Return a reference to the result of a call, which stays on its machine until it is needed.

    Pass it as an argument: the value goes from actor to actor, not through this process.
    `get(ref)` fetches it.  Passing the future itself has the same effect.
    """
    if not isinstance(future, CallFuture):
        raise TypeError(
            f"ref() takes the future of a call, as actor.method.submit() returns it, not "
            f"{future!r}; for a value, use put()"
        )
    future.is_passed_on = True
    return Reference(future)  # type: ignore[return-value]


def get(ref: T) -> T:
    """Return the value of a reference: the result of `ref` or `put`, or the future of a call.

    Waits for a call, and raises what it raised.  Raises WorkerLost if the value was lost before it
    was fetched, and TypeError for other objects.
    """
    if isinstance(ref, list | tuple) and ref and all(isinstance(one, CallFuture) for one in ref):
        raise TypeError(
            "get() takes one future: write [future.result() for future in futures] for several"
        )
    try:
        if isinstance(ref, CallFuture):
            return ref.result()  # type: ignore[no-any-return]
        if isinstance(ref, Reference | Put):
            return ref.get()  # type: ignore[no-any-return]
        return connection.current().value_of(ref)  # type: ignore[no-any-return]
    finally:
        del ref  # it has the error that is raised, whose traceback has this frame


@overload
def arrivals(
    cls: type[T], /, *, count: int | None = None, timeout: float | None = None
) -> Iterator[T]: ...
@overload
def arrivals(
    cls: str, /, *, count: int | None = None, timeout: float | None = None
) -> Iterator[Any]: ...
def arrivals(
    cls: Any, /, *, count: int | None = None, timeout: float | None = None
) -> Iterator[Any]:
    """Yield a handle of each object of a class that dials in; wait for the next one.

    cls      the class or a base class, or its name.  Classes are compared by name, because the
             process may have imported its class from another place
    count    the number of objects to yield; without it, there is no end
    timeout  the seconds to wait for the next object; then CallTimeout is raised

    Each object is given to one client at a time, and to another when that client has ended.
    Handles are borrowed: the object outlives them.
    """
    name = cls if isinstance(cls, str) else getattr(cls, "__name__", None)
    if not name or not isinstance(cls, str | type):
        raise TypeError(f"cls={cls!r} must be a class, or the name of one")
    if count is not None:
        arguments.whole_number("count", count, 1)
    if timeout is not None:
        arguments.number("timeout", timeout)
    return _Arrivals(connection.current(), cls, name, count, timeout)


class _Arrivals(Iterator[Any]):
    """Handles of the objects that dial in.  Unlike a generator, no interrupt or timeout ends it."""

    def __init__(
        self, engine: Engine, cls: Any, name: str, count: int | None, timeout: float | None
    ) -> None:
        self._engine = engine
        self._class = cls
        self._name = name
        self._left = math.inf if count is None else count
        self._timeout = timeout

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        arrival = self._engine.await_arrival(self._name)
        try:
            remote = arrival.result(self._timeout)
            found = class_of(remote) if isinstance(self._class, str) else self._class
            handle = handle_of(found, remote)
        except BaseException:  # an interrupt too: another call may get it
            arrival.give_back()
            raise
        self._left -= 1
        return handle

    def __reduce__(self) -> NoReturn:
        raise NotToBePickled(self, "waits for arrivals, and cannot be sent: pass the handles")


def _handles_of(target: Any) -> Sequence[Any]:
    if issubclass(type(target), Group):
        return target._remotely_handles  # type: ignore[no-any-return]
    if issubclass(type(target), Handle):
        return (target,)
    raise TypeError(f"expected a handle or a group, not {target!r}")
