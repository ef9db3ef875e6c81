"""Classes that copy a class statement: `without_hooks` makes them so that no base hears of it.

Python calls `__init_subclass__` of the bases for each class that is made, with the keyword
arguments of the class statement.  It may require some, which no class remembers, or register the
class, and refuse a second one of that name.

So the class is made with an additional first base, whose `__init_subclass__` does nothing, and
which is then removed.  CPython permits that if the additional base gives instances the same layout
as the first of the others that matters: `_deaf_like` makes such a base.

Refused: a metaclass with an `mro` that hides the hooks, because `type` cannot be restored as the
metaclass; and hiding the hook in the bases meanwhile, because other threads use them.
"""

import types
from collections.abc import Iterator
from typing import Any

_LAYOUT = ("__basicsize__", "__itemsize__", "__dictoffset__", "__weakrefoffset__")


_DEAF: Any = classmethod(lambda _, **__: None)  # the hook of an additional base


def without_hooks(
    meta: Any, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]
) -> type[Any]:
    """Make a class without calling `__init_subclass__`.  Raises TypeError if that is impossible."""
    refused: TypeError | None = None
    resolved = types.resolve_bases(bases)  # Base[int] is Base
    if resolved is not bases:
        namespace = {**namespace, "__orig_bases__": bases}
    for first in _deaf_bases(resolved):
        try:
            made = make_class(meta, name, (first, *resolved), namespace)
            made.__bases__ = resolved or (object,)
        except TypeError as error:
            refused = refused or error
        else:
            return made
    assert refused is not None
    raise refused


def make_class(
    meta: Any, name: str, bases: tuple[type, ...], namespace: dict[str, Any]
) -> type[Any]:
    """Make a class, as a class statement does."""
    return types.new_class(name, bases, {"metaclass": meta}, lambda names: names.update(namespace))


def _deaf_bases(bases: tuple[type, ...]) -> Iterator[type]:
    yield _deaf(object, ())
    for base in bases:
        yield _deaf_like(base)


def _deaf_like(base: type) -> type:
    """Return a base whose instances have the same layout: a `__dict__`, weak references."""
    adds = base
    while (below := adds.__base__) is not None and _layout(adds) == _layout(below):
        adds = below
    if (below := adds.__base__) is None:
        return _deaf(object, ())
    slots = []
    if adds.__dictoffset__ and not below.__dictoffset__:
        slots.append("__dict__")
    if adds.__weakrefoffset__ and not below.__weakrefoffset__:
        slots.append("__weakref__")
    return _deaf(below, tuple(slots))


def _deaf(base: type, slots: tuple[str, ...]) -> type:
    names = {"__slots__": slots, "__init_subclass__": _DEAF}
    make = make_class if base is object else without_hooks
    return make(type(base), "Deaf", (base,), names)


def _layout(cls: type) -> tuple[int, ...]:
    return tuple(getattr(cls, name) for name in _LAYOUT)
