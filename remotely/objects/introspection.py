"""Facts about a class: its asynchronous methods, and names that it lacks."""

import inspect

from remotely.arguments import did_you_mean
from remotely.objects import construct
from remotely.objects.batching import batched_methods
from remotely.objects.placeholders import function_of


def async_methods(cls: type) -> frozenset[str]:
    """Return the names of a class's `async def` methods, those of its bases included."""
    return frozenset(
        name
        for name in dir(cls)
        if inspect.iscoroutinefunction(function_of(inspect.getattr_static(cls, name, None)))
    )


def has_async_streams(cls: type) -> bool:
    """Return whether a class has an `async def` method that yields."""
    return any(
        inspect.isasyncgenfunction(function_of(inspect.getattr_static(cls, name, None)))
        for name in dir(cls)
    )


def is_serial(cls: type, concurrency: int) -> bool:
    """Return whether the calls of such an object surely run one at a time, on one thread."""
    if concurrency > 1 or construct.has_new(cls):
        return False
    return not (async_methods(cls) or has_async_streams(cls) or batched_methods(cls))


def unknown_name(cls: type, name: str, known: list[str]) -> str:
    """Return a message about a name that a class does not have, with the closest one it has."""
    hint = did_you_mean(name, (k for k in known if not k.startswith("__")))
    return f"{cls.__name__!r} has no method or attribute {name!r}{hint and f'; {hint}'}"
