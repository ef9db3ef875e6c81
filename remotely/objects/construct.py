"""Plain instances of remote classes: for the actor's process, and for copies.

Calling a remote class places an actor.  These functions make a plain instance instead: they call
the `__new__` that the class had or inherited before it was decorated, then its `__init__`.
"""

import copyreg
import threading
from typing import Any

# .making: the class of the plain instance that this thread is making, and the classes of its MRO
# whose `__new__` was replaced by the decorator and has not been called yet.
_here = threading.local()


def construct(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a plain instance, as `cls(*args, **kwargs)` would if `cls` were not remote."""
    instance = _plain(cls, args, kwargs)
    if isinstance(instance, cls):
        cls.__init__(instance, *args, **kwargs)  # type: ignore[misc]
    return instance


def is_under_way(cls: type) -> bool:
    """Tell whether `construct`, not the user, is calling the `__new__` of the decorator."""
    making, owners = getattr(_here, "making", (None, []))
    return making is cls and bool(owners)


def has_new(cls: type) -> bool:
    """Tell whether a class has a `__new__` of the user, which may make objects of any class."""
    return any(map(_new_in, cls.__mro__[:-1]))


def constructor_of(cls: type) -> Any:
    """Return the `__new__` or `__init__` that takes a class's arguments; None if there is none."""
    for base in cls.__mro__[:-1]:
        if member := _new_in(base) or vars(base).get("__init__"):
            return getattr(member, "__func__", member)
    return None


def _new_in(base: type) -> Any:
    """Return the user's `__new__` of the class itself."""
    own = vars(base)
    return own["__remotely_new__"] if "__remotely_new__" in own else own.get("__new__")


def own_new(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the original `__new__` of the next decorated class of the MRO."""
    _, owners = _here.making
    _here.making = cls, owners[1:]
    try:
        return _new_of(owners[0], cls, args, kwargs)
    finally:
        _here.making = cls, owners


def reduce_ex(self: Any, protocol: Any) -> Any:
    """The `__reduce_ex__` of a remote class: copies and unpickled instances are plain."""
    reduced = object.__reduce_ex__(self, protocol)
    if not isinstance(reduced, tuple):
        return reduced
    make, args, *state = reduced
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]
        return (_plain, (args[0], args[1:]), *state)
    if make is copyreg.__newobj_ex__:  # type: ignore[attr-defined]
        return (_plain, args, *state)
    if isinstance(make, type) and hasattr(make, "__remotely__"):
        return (construct, (make, args, {}), *state)
    return reduced


def _plain(cls: type, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    before: tuple[Any, list[type]] = getattr(_here, "making", (None, []))
    _here.making = cls, [base for base in cls.__mro__ if "__remotely_new__" in vars(base)]
    try:
        return cls.__new__(cls, *args, **(kwargs or {}))
    finally:
        _here.making = before


def _new_of(owner: type, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    original = vars(owner)["__remotely_new__"]
    if original is not None:
        return original.__get__(None, cls)(cls, *args, **kwargs)
    above = super(owner, cls).__new__  # type: ignore[arg-type]
    if above is not object.__new__:
        return above(cls, *args, **kwargs)
    if (args or kwargs) and cls.__init__ is object.__init__:  # type: ignore[misc]
        raise TypeError(f"{cls.__name__}() takes no arguments")
    return above(cls)
