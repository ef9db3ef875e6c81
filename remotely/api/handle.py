"""Handles: what a client holds of an actor.

All names on a handle belong to the user: the methods of the class, and the attributes of the
object.  So a handle has no name of its own but Python's, and the toolkit's verbs are functions
(verbs.py).

Functions and methods run in the actor, wherever they come from; all other attributes arrive as
copies (placeholders.py).  For special methods see special.py.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

from remotely.api import connection
from remotely.api.dispatch import call, call_one, end, read, remote_of, write
from remotely.api.members import check_slots, is_method, member_of
from remotely.api.method import Method
from remotely.engine import RemoteActor
from remotely.objects.placeholders import RoutinePlaceholder
from remotely.objects.ray_hints import is_ray_hint
from remotely.objects.special import defines, special_methods
from remotely.protocol.lease import DRAIN_S
from remotely.values import references

DIR_S = 1.0  # a busy actor must not hold up a user who presses the tab key


class Handle:
    """One actor, as its client sees it.  `isinstance(handle, Actor)` is true."""

    __slots__ = ("__weakref__", "_remotely_class", "_remotely_remote", "_remotely_wait")

    _remotely_class: type
    _remotely_remote: RemoteActor
    _remotely_wait: bool

    def __getattr__(self, name: str) -> Any:
        """Read an attribute of the object; methods are found on the type of the handle."""
        member_of(self._remotely_class, name)
        value = read((self,), name)[0].result()
        return Method((self,), name, value) if type(value) is RoutinePlaceholder else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__orig_class__":  # set by Actor[int](...), which can do without
            raise AttributeError(name)
        check_slots(self._remotely_class, name)
        write((self,), name, value)[0].result()

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name!r}: attributes of an actor can be read and written only")

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
        return type(other) is type(self) and remote_of(other).actor == remote_of(self).actor

    def __hash__(self) -> int:
        return hash(remote_of(self).actor)

    def __repr__(self) -> str:
        return f"<handle of {self._remotely_class.__name__} {remote_of(self).name!r}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """What a notebook shows; else it would go by the class and show an address."""
        return {"text/plain": repr(self)}

    def __reduce__(self) -> tuple[Any, ...]:
        remote = remote_of(self)
        cls, wait, cluster = self._remotely_class, self._remotely_wait, remote.engine.cluster
        if (noting := references.local.notes) is not None:
            noting.keep(remote)
        return _unpickle, (cls, remote.actor, remote.name, wait, cluster, remote.sent)


class _MethodOf:
    """Makes `handle.name` a Method.

    It is no data descriptor, so that `handle.name = x` is sent to the object.
    """

    __slots__ = ("_member", "_name")

    def __init__(self, name: str, member: Any) -> None:
        self._name = name
        self._member = member

    def __get__(self, handle: Any, cls: type) -> Any:
        return self if handle is None else Method((handle,), self._name, self._member)


# By their class, which each of them holds: both go when no handle of it is left.
_TYPES: WeakValueDictionary[type, type[Handle]] = WeakValueDictionary()


def handle_of(cls: type, remote: RemoteActor, wait: bool) -> Any:
    """Return a new handle of an actor; with `wait`, plain calls on it block."""
    handle = object.__new__(_type_of_handle(cls))
    for name, value in (("class", cls), ("remote", remote), ("wait", wait)):
        object.__setattr__(handle, f"_remotely_{name}", value)
    remote.face = functools.partial(handle_of, cls, wait=wait)
    return handle


def _type_of_handle(cls: type) -> type[Handle]:
    """Return the type of handles for a class: it has the special methods of the class."""
    found = _TYPES.get(cls)
    if found is None:
        names: dict[str, Any] = special_methods(cls, call_one, _close)
        if defines(cls, "__call__"):
            names["__call__"] = _call_itself
        for name in dir(cls):
            member = inspect.getattr_static(cls, name)
            if not name.startswith("__") and is_method(member):
                names[name] = _MethodOf(name, member)
        names["__slots__"] = ()
        names["__class__"] = property(lambda _: cls)
        names["__doc__"] = cls.__doc__
        found = _TYPES[cls] = type(f"HandleOf{cls.__name__}", (Handle,), names)
    return found


def _call_itself(self: Handle, *args: Any, **kwargs: Any) -> Any:
    return Method((self,), "__call__", None)(*args, **kwargs)


def _close(handle: Handle) -> None:
    end((handle,), DRAIN_S)


def _unpickle(
    cls: type, actor: str, name: str, wait: bool, cluster: str, sent: tuple[int, frozenset[str]]
) -> Any:
    remote = connection.of(cluster).borrow(actor, name)
    remote.sent = max(remote.sent, sent, key=lambda known: (known[0], len(known[1])))
    return handle_of(cls, remote, wait)


def _own_names(cls: type, names: Iterable[str]) -> list[str]:
    return [name for name in names if not is_ray_hint(cls, name)]
