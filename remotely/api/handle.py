"""Handles: a client's proxies for actors, and the path of a call from them to the engine.

All names on a handle belong to the user: the class's methods and the object's attributes.  So a
handle has no public names of its own, and the toolkit's verbs are functions (verbs.py).

Functions and methods run in the actor, wherever they are defined; all other attributes arrive as
copies (placeholders.py).  For special methods see special.py.
"""

import contextlib
import functools
import inspect
import time
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from remotely import arguments
from remotely.api import connection
from remotely.engine import Options, RemoteActor
from remotely.errors import CallTimeout
from remotely.futures.awaitable import AwaitableFuture
from remotely.futures.future import CallFuture, wait_for
from remotely.objects.marks import Marks, marks_of
from remotely.objects.members import is_method
from remotely.objects.placeholders import RoutinePlaceholder
from remotely.objects.special import defines, special_methods
from remotely.other_names import is_hint, no_such_name, static_member
from remotely.protocol.lease import DRAIN_S
from remotely.values import codec

DIR_S = 1.0  # a busy actor must not block tab completion
CANCEL_LATE_S = 0.5  # for all late calls together

MISSING = object()

# Notebooks and similar tools look these up on any object.  The last two are rich's, with which it
# detects objects that have every attribute.
_PROBES = ("_ipython_", "_repr_", "awehflow", "aihwerij")


class Handle:
    """A proxy for one actor.  `isinstance(handle, Actor)` is true."""

    __slots__ = (
        *("__weakref__", "_remotely_class", "_remotely_remote", "_remotely_wait"),
        "_remotely_arrived",  # what `borrowed` needs, until this handle is used
    )

    _remotely_class: type
    _remotely_remote: RemoteActor
    _remotely_wait: bool | None  # None: as its class says, once that is known
    _remotely_arrived: tuple[Any, ...]

    def __getattr__(self, name: str) -> Any:
        """Read an attribute of the object; methods are found on the type of the handle."""
        if name == "_remotely_remote":
            return _begin_use(self)
        member_of(self._remotely_class, name)
        value = read((self,), name)[0].result()
        return Method((self,), name, value) if type(value) is RoutinePlaceholder else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__orig_class__":  # set by Actor[int](...), which ignores this error
            raise AttributeError(name)
        check_slots(self._remotely_class, name)
        write((self,), name, value)[0].result()

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name!r}: attributes of an actor cannot be deleted")

    def __dir__(self) -> Iterable[str]:
        with contextlib.suppress(Exception):  # it is busy, or has ended
            names: list[str] = call((self,), "__dir__", (), {}, True)[0].result(DIR_S)
            return _own_names(self._remotely_class, names)
        return _own_names(self._remotely_class, dir(self._remotely_class))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> bool | None:
        end((self,), DRAIN_S)
        return None

    def __eq__(self, other: object) -> bool:
        return issubclass(type(other), Handle) and remote_of(other).actor == remote_of(self).actor

    def __hash__(self) -> int:
        return hash(remote_of(self).actor)

    def __repr__(self) -> str:
        return f"<handle of {self._remotely_class.__name__} {remote_of(self).name!r}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """The text for a notebook, which would otherwise use the class and show an address."""
        return {"text/plain": repr(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._remotely_class, *described(self))


class Method:
    """A method of an actor: call it and wait, or `submit` the call and continue."""

    __slots__ = ("__wrapped__", "_handles", "_name", "_retries", "_seconds")

    def __init__(
        self, handles: tuple[Any, ...], name: str, function: Any, marks: "Marks | None" = None
    ) -> None:
        self._handles = handles
        self._name = name
        self._retries, self._seconds = marks or marks_of(function)
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wait = self._handles[0]._remotely_wait
        futures = self._send(args, kwargs, not wait)
        return result_of(futures) if wait else futures.pop()

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Send the call and return its future at once."""
        return self._send(args, kwargs, True).pop()

    def _send(self, args: Any, kwargs: Any, background: bool) -> list[CallFuture[Any]]:
        retries, seconds = self._retries, self._seconds
        if seconds is None:
            return call(self._handles, self._name, args, kwargs, background, retries)
        deadline = time.monotonic() + seconds
        # In the background, so that sending it never blocks past the deadline.
        # Not in a local variable: with REMOTELY_LOCAL=1 the error holds this frame; see future.py.
        return _with_deadline(
            call(self._handles, self._name, args, kwargs, True, retries), seconds, deadline
        )

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return (self._name, self._handles) == (other._name, other._handles)

    def __hash__(self) -> int:
        return hash((self._name, self._handles))

    @property
    def __name__(self) -> str:
        return self._name

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return inspect.getdoc(self.__wrapped__)

    @property
    def __signature__(self) -> inspect.Signature:
        if not callable(self.__wrapped__) and not hasattr(self.__wrapped__, "__get__"):
            return inspect.signature(lambda *args, **kwargs: None)  # known only in the actor
        bind = getattr(self.__wrapped__, "__get__", None)
        return arguments.signature_of(bind(self) if bind else self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also slots that are unset while the method is copied
            raise AttributeError(name)
        raise no_such_name(f"the method {self._name}", f"method.{name}", "a.f", self._name)

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._handles[0]!r}>"


# A special method, which Python calls itself: that waits, also with `wait=False`.  Its docstring is
# that of the user's method.
class _SpecialMethod(Method):
    __slots__ = ()
    __doc__ = Method.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return result_of(self._send(args, kwargs, False))

    def send(self, background: bool, *args: Any) -> CallFuture[Any]:
        """Send the call.  Without `background`, the caller is about to wait for it."""
        return self._send(args, {}, background).pop()


class _MethodOf:
    """The descriptor that makes `handle.name` a Method.

    Not a data descriptor, so that `handle.name = x` is sent to the object.
    """

    __slots__ = ("_kind", "_marks", "_member", "_name")

    def __init__(self, name: str, member: Any, kind: type[Method] = Method) -> None:
        self._name = name
        self._member = member
        self._marks = marks_of(member)
        self._kind = kind

    def __get__(self, handle: Any, cls: type | None = None) -> Any:
        if handle is None:
            return self
        return self._kind((handle,), self._name, self._member, self._marks)

    def __call__(self, handle: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call it as a function of the type: `type(handle).name(handle)`, as ExitStack does."""
        return self.__get__(handle)(*args, **kwargs)


def special_method(name: str, member: Any) -> Any:
    """Return the descriptor of a special method: a `special.Descriptor`."""
    return _MethodOf(name, member, _SpecialMethod)


# By class, which each of them holds: both are freed with the last handle.
_TYPES: WeakValueDictionary[type, type[Handle]] = WeakValueDictionary()


def handle_of(cls: type, remote: RemoteActor, wait: bool | None = None) -> Any:
    """Return a new handle of an actor; `wait`: plain calls on it block; None: as its class says."""
    handle = object.__new__(_type_of_handle(cls))
    object.__setattr__(handle, "_remotely_remote", remote)
    object.__setattr__(handle, "_remotely_wait", wait)
    give_class(handle, cls)
    return handle


def give_class(handle: Handle, cls: type) -> type[Handle]:
    """Give a handle its class; return the type that it must have."""
    object.__setattr__(handle, "_remotely_class", cls)
    if handle._remotely_wait is None:
        wait = getattr(cls, "__remotely__", Options()).wait
        object.__setattr__(handle, "_remotely_wait", wait)
    remote_of(handle).face = functools.partial(handle_of, cls, wait=handle._remotely_wait)
    return _type_of_handle(cls)


def _type_of_handle(cls: type) -> type[Handle]:
    """Return the type of handles of a class, with its methods and special methods."""
    found = _TYPES.get(cls)
    if found is None:
        names: dict[str, Any] = special_methods(cls, special_method, _close)
        for name in dir(cls):
            member = inspect.getattr_static(cls, name)
            is_plain = not name.startswith("__") or name == "__call__"
            if is_plain and is_method(member):
                names[name] = _MethodOf(name, member)
        names["__slots__"] = ()
        names["__class__"] = property(lambda _: cls)
        names["__doc__"] = cls.__doc__
        found = _TYPES[cls] = type(f"HandleOf{cls.__name__}", (Handle,), names)
    return found


def _close(handle: Handle) -> None:
    end((handle,), DRAIN_S)


Description = tuple[str, str, bool | None, str, tuple[int, frozenset[str]], str]


def described(handle: Handle) -> Description:
    """Return what `borrowed` needs in another process.

    A call that carries it keeps the actor.  If an actor returns it, the receiver holds the actor.
    """
    remote = remote_of(handle)
    if (table := codec.reference_table.get()) is not None:
        table.keep(remote)
    wait, cluster, giver = handle._remotely_wait, remote.engine.cluster, remote.note_return()
    return remote.actor, remote.name, wait, cluster, remote.sent, giver


def borrowed(
    actor: str,
    name: str,
    wait: bool | None,
    cluster: str,
    sent: tuple[int, frozenset[str]],
    giver: str,
) -> tuple[RemoteActor, bool | None]:
    """Return the actor of a handle that has arrived, and whether plain calls on that block.

    `giver` is the client that returned it; empty if it is borrowed.
    """
    engine = connection.engine_for(cluster)
    remote = engine.hold(actor, name, giver) if giver else engine.borrow(actor, name)
    remote.sent = max(remote.sent, sent, key=lambda known: (known[0], len(known[1])))
    return remote, wait


def _unpickle(cls: type, *description: Any) -> Any:
    _, _, wait, _, _, giver = description
    # An idle actor may never use it, and the master may be away.
    if connection.is_idle_actor() and not giver:
        handle = object.__new__(_type_of_handle(cls))
        object.__setattr__(handle, "_remotely_class", cls)
        object.__setattr__(handle, "_remotely_wait", wait)
        object.__setattr__(handle, "_remotely_arrived", description)
        return handle
    return handle_of(cls, *borrowed(*description))


def _begin_use(handle: Handle) -> RemoteActor:
    """Give a handle that has arrived its actor: this process becomes a client of its cluster."""
    remote, _ = borrowed(*handle._remotely_arrived)
    object.__setattr__(handle, "_remotely_remote", remote)
    give_class(handle, handle._remotely_class)
    return remote


def _own_names(cls: type, names: Iterable[str]) -> list[str]:
    return [name for name in names if not is_hint(cls, name)]


# --- members of a class ---------------------------------------------------------------------------


def member_of(cls: type, name: str) -> Any:
    """Return a member of a class, or MISSING if only its objects may have it.

    Raises AttributeError for a special name that the class lacks: it is never remote.
    """
    member = static_member(cls, name, MISSING)
    special = (name.startswith("__") and name.endswith("__")) or name.startswith(_PROBES)
    if member is MISSING and special:
        raise AttributeError(name)
    return member


def check_slots(cls: type, name: str) -> None:
    """Raise AttributeError if the class has only slots, and none of this name.

    The actor would not: a class that is pickled by value loses its slots.
    """
    has_only_slots = cls.__dictoffset__ == 0 and not defines(cls, "__setattr__")
    if has_only_slots and static_member(cls, name, MISSING) is MISSING:
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")


# --- from handles to the engine -------------------------------------------------------------------


def remote_of(handle: Any) -> RemoteActor:
    return handle._remotely_remote  # type: ignore[no-any-return]


def call(
    handles: Sequence[Any], name: str, args: Any, kwargs: Any, background: bool, retries: int = 0
) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.call(remotes, name, args, kwargs, background, retries)


def read(handles: Sequence[Any], name: str) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.get(remotes, name)


def write(handles: Sequence[Any], name: str, value: Any) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.set(remotes, name, value)


def end(handles: Sequence[Any], grace_s: float) -> None:
    """End the actors of these handles, on one or several engines."""
    by_engine: dict[Any, list[RemoteActor]] = {}
    for remote in _remotes(handles):
        by_engine.setdefault(remote.engine, []).append(remote)
    for engine, remotes in by_engine.items():
        engine.end(remotes, grace_s)


def result_of(futures: "list[AwaitableFuture[Any]] | list[CallFuture[Any]]") -> Any:
    """Take the only future out of a list, and wait for its result, as `results` does."""
    if futures[0].deadline is None:
        return futures.pop().result()
    return results([futures.pop()])[0]


def results(futures: Sequence[AwaitableFuture[Any]]) -> list[Any]:
    """Wait for all results, so that no call is running when the first error is raised.

    Past their deadlines, cancel the calls that have not begun, and raise CallTimeout.
    """
    wait_for(futures)
    cancelled, still_running = _cancel_late(futures)
    futures = [*futures][::-1]
    # No frame here holds a future whose error is raised: see future.py.
    values = []
    for number in range(len(futures)):
        if number in cancelled:
            message = f"{futures.pop().what} had not begun in time, and was cancelled"
            raise CallTimeout(message, still_running=still_running)
        values.append(futures.pop().result())
    return values


def _cancel_late(futures: Sequence[AwaitableFuture[Any]]) -> tuple[set[int], bool]:
    """Cancel calls that have not begun; return their indices, and whether others are running."""
    cancelled, still_running = set(), False
    deadline = time.monotonic() + CANCEL_LATE_S
    for number, future in enumerate(futures):
        if future.done():
            continue
        if time.monotonic() < deadline and future.cancel():
            cancelled.add(number)
        else:
            still_running = still_running or not future.done()
    return cancelled, still_running


def _remotes(handles: Sequence[Any]) -> list[RemoteActor]:
    return [handle._remotely_remote for handle in handles]


def _with_deadline(
    futures: list[CallFuture[Any]], seconds: float, deadline: float
) -> list[CallFuture[Any]]:
    """Set the timeout of waits for these futures, which ends at the deadline."""
    for future in futures:
        future.limit_waits(seconds, deadline)
    return futures
