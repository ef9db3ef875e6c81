"""Introspection of classes: their asynchronous methods, and messages for unknown names."""

import inspect
from collections.abc import Callable
from typing import Any

from remotely.arguments import did_you_mean
from remotely.objects import construct
from remotely.objects.batching import batched_methods
from remotely.objects.placeholders import function_of


def async_methods(cls: type) -> frozenset[str]:
    """Return the names of the `async def` methods of a class and its bases."""
    return _methods_that(inspect.iscoroutinefunction, cls)


def has_async_streams(cls: type) -> bool:
    """Tell whether a class has an `async def` method that yields."""
    return bool(_methods_that(inspect.isasyncgenfunction, cls))


def _methods_that(are: Callable[[Any], bool], cls: type) -> frozenset[str]:
    # Each actor does this as it starts.  `inspect.getattr_static` would take a millisecond, most of
    # it for what every class has from `object`.
    attributes: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        attributes.update(vars(base))
    return frozenset(name for name, value in attributes.items() if are(function_of(value)))


def is_serial(cls: type, concurrency: int) -> bool:
    """Tell whether the calls of an object are certain to run one at a time, on one thread."""
    if concurrency > 1 or construct.has_new(cls):
        return False
    return not (async_methods(cls) or has_async_streams(cls) or batched_methods(cls))


def unknown_name(cls: type, name: str, known: list[str]) -> str:
    """Return the message for an unknown name, with the closest name of the class."""
    hint = did_you_mean(name, (k for k in known if not k.startswith("__")))
    return f"{cls.__name__!r} has no method or attribute {name!r}{hint and f'; {hint}'}"
