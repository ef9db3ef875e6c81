"""Handles of actors that were found by name: their class is fetched when it is first needed.

The actor alone knows its class, and may be busy, or stuck for good.  To end it, to pass its handle
on, or to print it needs no class, so `get_actor` waits for nothing.  The first use that needs the
class turns the handle into one of its class, in place: an attribute or a method, `isinstance`, a
special method.  So this type has every special method that a class may have, and each of them
fetches the class and then does again what Python was asked to do.
"""

import functools
import math
import operator
import os
from collections.abc import Callable
from typing import Any

from remotely.api import connection
from remotely.api.handle import Handle, borrowed, described, give_class, handle_of, remote_of
from remotely.engine import RemoteActor
from remotely.objects.special import FORWARDED

_set_type = vars(object)["__class__"].__set__

# What Python was asked to do, where it is not the function of this name in `operator`.
_ASKED: dict[str, Callable[..., Any]] = {
    "__len__": len,
    "__length_hint__": operator.length_hint,
    "__iter__": iter,
    "__next__": next,
    "__reversed__": reversed,
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__complex__": complex,
    "__bytes__": bytes,
    "__fspath__": os.fspath,
    "__round__": round,
    "__trunc__": math.trunc,
    "__floor__": math.floor,
    "__ceil__": math.ceil,
    "__divmod__": divmod,
    "__idivmod__": divmod,  # Python has no operator for it
    "__pow__": pow,
    "__call__": lambda handle, *args, **kwargs: handle(*args, **kwargs),
}
# Methods that Python looks up before it calls the first one of them: `with` and its like.
_LOOKED_UP = ("__enter__", "__exit__", "__aenter__", "__aexit__", "__array__")


class FoundHandle(Handle):
    """A handle without a class; it has another type as soon as it has one."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name == "_remotely_remote":
            return _set_remote(self, *borrowed(*self._remotely_arrived))
        if name.startswith(("_ipython_", "_repr_")):  # a notebook shows it
            raise AttributeError(name)
        fetch_class(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        fetch_class(self)
        setattr(self, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return fetch_class(self)

    def __dir__(self) -> Any:
        fetch_class(self)
        return dir(self)

    def __repr__(self) -> str:
        return f"<handle of {remote_of(self).name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, described(self)


def found_handle(remote: RemoteActor, wait: bool | None = None) -> Any:
    """Return a new handle of an actor whose class this process may not know."""
    handle = object.__new__(FoundHandle)
    _set_remote(handle, remote, wait)
    return handle


def _set_remote(handle: FoundHandle, remote: RemoteActor, wait: bool | None) -> RemoteActor:
    object.__setattr__(handle, "_remotely_remote", remote)
    object.__setattr__(handle, "_remotely_wait", wait)
    remote.face = functools.partial(found_handle, wait=wait)
    return remote


def handle_as(cls: type, remote: RemoteActor, wait: bool | None = None) -> Any:
    """Return a handle of an actor that was found by name, which must be of this class.

    Of a class derived from it too; classes are compared by name.  Waits for the actor unless it is
    of the very class.  Raises TypeError if it is of another one.
    """
    found = cls if cls.__name__ == remote.class_name else class_of(remote)
    if cls.__name__ not in {each.__name__ for each in found.__mro__}:
        raise TypeError(
            f"the actor named {remote.name!r} is of the class {found.__name__}, not {cls.__name__}"
        )
    return handle_of(found, remote, wait)


def class_of(remote: RemoteActor) -> type:
    """Return the class of an actor of another process.  Waits for the actor."""
    cls: type = remote.engine.get([remote], "__class__")[0].result()
    return cls


def fetch_class(handle: Any) -> type:
    """Make a handle one of its actor's class, which is returned.  Waits for the actor."""
    cls = class_of(remote_of(handle))
    _set_type(handle, give_class(handle, cls))
    return cls


def _unpickle(*description: Any) -> Any:
    _, _, wait, _, _, is_returned = description
    if connection.is_idle_actor() and not is_returned:  # as for a handle with a class
        handle = object.__new__(FoundHandle)
        object.__setattr__(handle, "_remotely_wait", wait)
        object.__setattr__(handle, "_remotely_arrived", description)
        return handle
    return found_handle(*borrowed(*description))


def _asked(name: str) -> Callable[..., Any]:
    plain = name.strip("_")
    if name in _ASKED:
        return _ASKED[name]
    if name.startswith("__r") and f"__{plain[1:]}__" in FORWARDED:
        reflected = _asked(f"__{plain[1:]}__")
        return lambda handle, other: reflected(other, handle)
    return getattr(operator, name)  # type: ignore[no-any-return]


def _special(name: str) -> Callable[..., Any]:
    asked = None if name in _LOOKED_UP else _asked(name)

    def special(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self) is FoundHandle:  # else it has its class since Python looked this up: `with`
            fetch_class(self)
        return asked(self, *args, **kwargs) if asked else getattr(self, name)(*args, **kwargs)

    special.__name__ = name
    return special


for _name in (*FORWARDED, *_LOOKED_UP, "__call__"):
    setattr(FoundHandle, _name, _special(_name))
