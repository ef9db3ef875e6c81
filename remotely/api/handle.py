"""What a client holds of actors: handles and groups.

All names on a handle are the user's: methods of the class, and attributes of the object over there.
So a handle has no name of its own but Python's, and the toolkit's verbs are functions.

Functions and methods run over there, wherever they come from, and all other attributes arrive as
copies: placeholders.py.  Special methods: special.py.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, TypeVar, overload
from weakref import WeakValueDictionary

from remotely import arguments
from remotely.api import connection
from remotely.arguments import suggests
from remotely.engine import Options, RemoteActor
from remotely.futures.future import CallFuture, completed, failed, wait_for
from remotely.objects.idempotent import retries_of
from remotely.objects.placeholders import RoutinePlaceholder
from remotely.objects.ray_hints import is_ray_hint, no_such_attribute, static_member
from remotely.objects.special import defines, leave, special_methods
from remotely.protocol.lease import DRAIN_S
from remotely.reporting.cluster_status import ClusterStatus

T = TypeVar("T")
P = ParamSpec("P")

# Notebooks and the like ask any object for these; the last two are rich's, who believes no object
# that has everything.
_NOT_OURS = ("_ipython_", "_repr_", "awehflow", "aihwerij")
DIR_S = 1.0  # a busy actor is not to hold up who presses the tab key


class Method:
    """A method of an actor: call it and wait, or `submit` it and go on."""

    __slots__ = ("__wrapped__", "_handles", "_name")

    def __init__(self, handles: "Sequence[Handle]", name: str, function: Any) -> None:
        self._handles = handles
        self._name = name
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wait = self._handles[0]._remotely_wait
        futures = self._send(args, kwargs, not wait)
        return futures.pop().result() if wait else futures.pop()

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Send the call and return its future, at once."""
        return self._send(args, kwargs, True).pop()

    def _send(self, args: Any, kwargs: Any, background: bool) -> list[CallFuture[Any]]:
        retries = retries_of(self.__wrapped__)
        return _call(self._handles, self._name, args, kwargs, background, retries)

    @property
    def __name__(self) -> str:
        return self._name

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return inspect.getdoc(self.__wrapped__)

    @property
    def __signature__(self) -> inspect.Signature:
        if not callable(self.__wrapped__) and not hasattr(self.__wrapped__, "__get__"):
            return inspect.signature(lambda *args, **kwargs: None)  # only the actor knows
        bind = getattr(self.__wrapped__, "__get__", None)
        return inspect.signature(bind(self) if bind else self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # our own among them, while one is being copied
            raise AttributeError(name)
        raise AttributeError(no_such_attribute(self._name, name))

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._handles[0]!r}>"


class GroupMethod(Method):
    """A method of all members of a group; results are in member order."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._handles:
            return []
        wait = self._handles[0]._remotely_wait
        if not wait:
            return self._send(args, kwargs, True)
        return _results(self._send(args, kwargs, True))

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Send the calls and return their futures, in member order, at once."""
        return self._send(args, kwargs, True)


class Handle:
    """One actor, as its client sees it.  `isinstance(handle, Actor)` is true."""

    __slots__ = ("__weakref__", "_remotely_class", "_remotely_remote", "_remotely_wait")

    _remotely_class: type
    _remotely_remote: RemoteActor
    _remotely_wait: bool

    def __getattr__(self, name: str) -> Any:
        """Read an attribute over there; the methods are on the type of the handle."""
        _member(self._remotely_class, name)
        value = _get((self,), name)[0].result()
        return Method((self,), name, value) if type(value) is RoutinePlaceholder else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__orig_class__":  # by Actor[int](...), which does without where it must
            raise AttributeError(name)
        _check_slots(self._remotely_class, name)
        _set((self,), name, value)[0].result()

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name!r}: attributes of an actor can be read and written only")

    def __dir__(self) -> Iterable[str]:
        with contextlib.suppress(Exception):  # it is busy, or has ended
            names: list[str] = _call((self,), "__dir__", (), {}, True)[0].result(DIR_S)
            return _own_names(self._remotely_class, names)
        return _own_names(self._remotely_class, dir(self._remotely_class))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> bool | None:
        close(self)
        return None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _remote(other).actor == _remote(self).actor

    def __hash__(self) -> int:
        return hash(_remote(self).actor)

    def __repr__(self) -> str:
        return f"<handle of {self._remotely_class.__name__} {_remote(self).name!r}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """What a notebook shows; else it would go by the class, and show an address."""
        return {"text/plain": repr(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        remote = _remote(self)
        cls, wait, cluster = self._remotely_class, self._remotely_wait, remote.engine.cluster
        return _arrive, (cls, remote.actor, remote.name, wait, cluster, remote.sent)


class Group(Generic[T]):
    """Several actors of one class, called as one: arguments are pickled once."""

    __slots__ = ("_remotely_handles",)

    _remotely_handles: tuple[Any, ...]

    def __init__(self, handles: Iterable[T]) -> None:
        object.__setattr__(self, "_remotely_handles", tuple(handles))
        for handle in self._remotely_handles:
            if not issubclass(type(handle), Handle):
                raise TypeError(f"a group is made of handles; {handle!r} is none")

    def __getattr__(self, name: str) -> Any:
        handles = self._remotely_handles
        if not handles:
            raise AttributeError(f"{name!r}: the group is empty")
        member = _member(handles[0]._remotely_class, name)
        if member is not _MISSING and _is_method(member):
            return GroupMethod(handles, name, member)
        values = _results(_get(handles, name))
        if all(type(value) is RoutinePlaceholder for value in values):
            return GroupMethod(handles, name, values[0])
        return [
            Method((handle,), name, value) if type(value) is RoutinePlaceholder else value
            for handle, value in zip(handles, values, strict=True)
        ]

    def __setattr__(self, name: str, value: Any) -> None:
        if self._remotely_handles:
            _check_slots(self._remotely_handles[0]._remotely_class, name)
        _results(_set(self._remotely_handles, name, value))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "Group[T]": ...
    def __getitem__(self, index: int | slice) -> "T | Group[T]":
        if isinstance(index, slice):
            return Group(self._remotely_handles[index])
        return self._remotely_handles[index]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._remotely_handles)

    def __iter__(self) -> Iterator[T]:
        return iter(self._remotely_handles)

    def __enter__(self) -> "Group[T]":
        """Enter each member, if its class defines that; the group is given, whatever they give."""
        if _defines(self._remotely_handles, "__enter__"):
            _results(_call(self._remotely_handles, "__enter__", (), {}, True))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        try:
            handles = self._remotely_handles
            return _defines(handles, "__exit__") and leave(_send, handles, error)
        finally:
            close(self)

    def __repr__(self) -> str:
        more = ", ..." if len(self) > 3 else ""
        return f"<group of {len(self)}: {', '.join(map(repr, self._remotely_handles[:3]))}{more}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Group, (self._remotely_handles,)


def _defines(handles: Sequence[Handle], name: str) -> bool:
    return bool(handles) and defines(handles[0]._remotely_class, name)


def make(
    cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options, count: int
) -> list[Any]:
    """Place `count` objects and return their handles."""
    remotes = connection.current().place(cls, args, kwargs, options, count)
    return [_handle(cls, remote, options.wait) for remote in remotes]


def submit(method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Send a call and return its future: `submit(actor.sample)`, as type checkers like it.

    On a plain object's method it runs at once, here.
    """
    if isinstance(method, Method):
        return method.submit(*args, **kwargs)  # type: ignore[no-any-return]
    try:
        return completed(method(*args, **kwargs))
    except Exception as error:
        return failed(error)


@suggests
def close(target: Any, grace_s: float = DRAIN_S) -> None:
    """End an actor or a group after the calls made before; the class's own `close` is called there.

    An actor that has not ended after `grace_s` seconds is made to.  Closing again does nothing.
    """
    arguments.number("grace_s", grace_s)
    _end(target, grace_s)


def kill(target: Any) -> None:
    """End an actor or a group at once, whatever it is doing.

    Calls that are under way fail with ActorDied; the class's own `close` is not called, and
    `max_restarts` does not bring it back.
    """
    _end(target, 0.0)


def status() -> ClusterStatus:
    """Return who is on the cluster: machines, clients, actors, and how many requests wait."""
    return connection.current().report()


def get_actor(name: str) -> Any:
    """Return a handle of the actor with this name, borrowed.  Raises NameError if there is none."""
    arguments.of_type("name", name, str, "a string")
    remote = connection.current().find(name)
    cls = remote.engine.get([remote], "__class__")[0].result()
    return _handle(cls, remote, wait=True)


def handle_of(cls: type, actor: str, name: str) -> Any:
    """Return a borrowed handle of an actor of this class."""
    wait = getattr(cls, "__remotely__", Options()).wait
    return _handle(cls, connection.current().borrow(actor, name), wait)


def put(value: T) -> T:
    """Pickle a value once, to be passed many times; it arrives as the value."""
    return connection.current().put(value)  # type: ignore[no-any-return]


def _end(target: Any, grace_s: float) -> None:
    if isinstance(target, Group):
        handles = target._remotely_handles
    elif issubclass(type(target), Handle):
        handles = (target,)
    else:
        raise TypeError(f"this takes a handle or a group; {target!r} is neither")
    by_engine: dict[Any, list[RemoteActor]] = {}
    for handle in handles:
        by_engine.setdefault(_remote(handle).engine, []).append(_remote(handle))
    for engine, remotes in by_engine.items():
        engine.end(remotes, grace_s)


class _MethodOf:
    """Makes `handle.name` a Method.  No data descriptor: `handle.name = x` goes over there."""

    __slots__ = ("_member", "_name")

    def __init__(self, name: str, member: Any) -> None:
        self._name = name
        self._member = member

    def __get__(self, handle: Any, cls: type) -> Any:
        return self if handle is None else Method((handle,), self._name, self._member)


_MISSING = object()
# By their class, which each of them holds: both go when no handle of it is left.
_TYPES: WeakValueDictionary[type, type[Handle]] = WeakValueDictionary()


def _handle(cls: type, remote: RemoteActor, wait: bool) -> Any:
    handle = object.__new__(_type_of_handle(cls))
    for name, value in (("class", cls), ("remote", remote), ("wait", wait)):
        object.__setattr__(handle, f"_remotely_{name}", value)
    remote.face = functools.partial(_handle, cls, wait=wait)
    return handle


def _type_of_handle(cls: type) -> type[Handle]:
    """Return the kind of handle for a class: with its special methods, and passing for it."""
    found = _TYPES.get(cls)
    if found is None:
        names: dict[str, Any] = special_methods(cls, _send, close)
        if defines(cls, "__call__"):
            names["__call__"] = _call_itself
        for name in dir(cls):
            member = inspect.getattr_static(cls, name)
            if not name.startswith("__") and _is_method(member):
                names[name] = _MethodOf(name, member)
        names["__slots__"] = ()
        names["__class__"] = property(lambda _: cls)
        names["__doc__"] = cls.__doc__
        found = _TYPES[cls] = type(f"HandleOf{cls.__name__}", (Handle,), names)
    return found


def _call_itself(self: Handle, *args: Any, **kwargs: Any) -> Any:
    return Method((self,), "__call__", None)(*args, **kwargs)


def _send(
    handle: Handle, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], background: bool
) -> CallFuture[Any]:
    return _call((handle,), name, args, kwargs, background)[0]


def _arrive(
    cls: type, actor: str, name: str, wait: bool, cluster: str, sent: tuple[int, frozenset[str]]
) -> Any:
    """Unpickle a handle."""
    remote = connection.of(cluster).borrow(actor, name)
    remote.sent = max(remote.sent, sent, key=lambda known: (known[0], len(known[1])))
    return _handle(cls, remote, wait)


def _own_names(cls: type, names: Iterable[str]) -> list[str]:
    return [name for name in names if not is_ray_hint(cls, name)]


def _member(cls: type, name: str) -> Any:
    member = static_member(cls, name, _MISSING)
    special = (name.startswith("__") and name.endswith("__")) or name.startswith(_NOT_OURS)
    if member is _MISSING and special:
        raise AttributeError(name)
    return member


_WRAPPED = (staticmethod, classmethod, functools.partialmethod, functools.singledispatchmethod)


def _is_method(member: Any) -> bool:
    if isinstance(member, _WRAPPED):
        return True
    return callable(member) and not isinstance(member, type)


def _check_slots(cls: type, name: str) -> None:
    """Refuse what the class refuses; one that travelled by value has lost its slots over there."""
    has_only_slots = cls.__dictoffset__ == 0 and not defines(cls, "__setattr__")
    if has_only_slots and static_member(cls, name, _MISSING) is _MISSING:
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")


def _remote(handle: Any) -> RemoteActor:
    return handle._remotely_remote  # type: ignore[no-any-return]


def _remotes(handles: Sequence[Any]) -> list[RemoteActor]:
    return [handle._remotely_remote for handle in handles]


def _call(
    handles: Sequence[Any], name: str, args: Any, kwargs: Any, background: bool, retries: int = 0
) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.call(remotes, name, args, kwargs, background, retries)


def _get(handles: Sequence[Any], name: str) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.get(remotes, name)


def _set(handles: Sequence[Any], name: str, value: Any) -> list[CallFuture[Any]]:
    remotes = _remotes(handles)
    return remotes[0].engine.set(remotes, name, value)


def _results(futures: Sequence[CallFuture[Any]]) -> list[Any]:
    """Wait for all, so that no call is still running when the first error is raised."""
    wait_for(futures)
    futures = [*futures][::-1]
    # No frame of ours holds a future whose error is raised; see future.py.
    return [futures.pop().result() for _ in range(len(futures))]
