"""Introspection of classes: asynchronous methods, misplaced marks, messages for unknown names."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from remotely.arguments import did_you_mean
from remotely.objects import construct
from remotely.objects.batching import batched_methods
from remotely.objects.marks import NONE, marks_of
from remotely.objects.members import function_of, is_method
from remotely.objects.special import CALLED


def async_methods(cls: type) -> frozenset[str]:
    """Return the names of the `async def` methods of a class and its bases."""
    return _methods_that(inspect.iscoroutinefunction, cls)


def has_async_streams(cls: type) -> bool:
    """Tell whether a class has an `async def` method that yields."""
    return bool(_methods_that(inspect.isasyncgenfunction, cls))


def refuse_marks(cls: type) -> None:
    """Raise TypeError for a mark that nothing would heed: a call of a handle with one outcome can.

    The items of a stream are calls of their own, and none of them can be repeated.
    """
    for name, member in _members(cls).items():
        getter = _getter(member)
        if marks_of(member) == marks_of(getter) == NONE:
            continue
        function = function_of(member)
        if not is_method(member):
            why = "is read, not called"
        elif name.startswith("__") and name not in CALLED:
            why = "is not called on a handle"
        elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            why = "yields"
        else:
            continue
        raise TypeError(
            f"{cls.__name__}.{name} {why}: @remotely.timeout and @remotely.idempotent are for "
            "methods that are called on a handle and return one result"
        )


def _getter(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, functools.cached_property) else None


def _methods_that(are: Callable[[Any], bool], cls: type) -> frozenset[str]:
    return frozenset(name for name, value in _members(cls).items() if are(function_of(value)))


def _members(cls: type) -> dict[str, Any]:
    # Each actor does this as it starts.  `inspect.getattr_static` would take a millisecond, most of
    # it for what every class has from `object`.
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        members.update(vars(base))
    return members


def is_serial(cls: type, concurrency: int) -> bool:
    """Tell whether the calls of an object are certain to run one at a time, on one thread."""
    if concurrency > 1 or construct.has_new(cls):
        return False
    return not (async_methods(cls) or has_async_streams(cls) or batched_methods(cls))


def unknown_name(cls: type, name: str, known: list[str]) -> str:
    """Return the message for an unknown name, with the closest name of the class."""
    hint = did_you_mean(name, (k for k in known if not k.startswith("__")))
    return f"{cls.__name__!r} has no method or attribute {name!r}{hint and f'; {hint}'}"
