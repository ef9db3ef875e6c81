"""Introspection of classes: their asynchronous methods, and messages for unknown names."""

import inspect

from remotely.arguments import did_you_mean
from remotely.objects import construct
from remotely.objects.batching import batched_methods
from remotely.objects.placeholders import function_of


def async_methods(cls: type) -> frozenset[str]:
    """Return the names of the `async def` methods of a class and its bases."""
    return frozenset(
        name
        for name in dir(cls)
        if inspect.iscoroutinefunction(function_of(inspect.getattr_static(cls, name, None)))
    )


def has_async_streams(cls: type) -> bool:
    """Tell whether a class has an `async def` method that yields."""
    return any(
        inspect.isasyncgenfunction(function_of(inspect.getattr_static(cls, name, None)))
        for name in dir(cls)
    )


def is_serial(cls: type, concurrency: int) -> bool:
    """Tell whether the calls of an object are certain to run one at a time, on one thread."""
    if concurrency > 1 or construct.has_new(cls):
        return False
    return not (async_methods(cls) or has_async_streams(cls) or batched_methods(cls))


def unknown_name(cls: type, name: str, known: list[str]) -> str:
    """Return the message for an unknown name, with the closest name of the class."""
    hint = did_you_mean(name, (k for k in known if not k.startswith("__")))
    return f"{cls.__name__!r} has no method or attribute {name!r}{hint and f'; {hint}'}"
