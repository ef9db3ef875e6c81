"""Locks and their like, which do not pickle, created anew where they arrive.

They are among the globals of a function, or the members of a class, that goes by value.  Over there
each becomes one new lock, however often it arrives, as running the module again would make it.  So
does a ContextVar, with its default.
"""

import sys
import uuid
from collections.abc import Callable, MutableMapping
from contextvars import Context, ContextVar
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

_Ids = MutableMapping[object, str]
_Kept = MutableMapping[str, object]

_id_of: _Ids = WeakKeyDictionary()
_sent: _Kept = WeakValueDictionary()
_made: _Kept = {}  # for good: what is held must not be made once more
_id_of_variable: _Ids = {}  # for good: Python has no weak references to them
_RECREATED: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def recreated_types() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """Return what is created anew: its type, and what tells its maker and the arguments of that."""
    if not _RECREATED:
        threading: Any = sys.modules["threading"]  # whose locks these are; nothing locks here
        for name in ("Lock", "RLock", "local", "Condition", "Event"):
            make = getattr(threading, name)
            _RECREATED[type(make())] = lambda _, make=make: (make,)  # type: ignore[misc]
        _RECREATED[threading.Semaphore] = lambda made: (type(made), made._value)
        _RECREATED[threading.BoundedSemaphore] = lambda made: (type(made), made._initial_value)
        _RECREATED[ContextVar] = lambda made: (_variable, made.name, *_default_of(made))
    return _RECREATED


def _default_of(variable: ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (Context().run(variable.get),)
    except LookupError:
        return ()


def _variable(name: str, *default: Any) -> ContextVar[Any]:
    return ContextVar(name, default=default[0]) if default else ContextVar(name)


class _NewLock:
    """Stands in for a lock where it is pickled."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __reduce__(self) -> tuple[Any, ...]:
        ids, kept = _books_of(self.lock)
        made_id = ids.setdefault(self.lock, uuid.uuid4().hex)
        kept.setdefault(made_id, self.lock)
        return _new_lock, (made_id, *recreated_types()[type(self.lock)](self.lock))


def _books_of(lock: object) -> tuple[_Ids, _Kept]:
    return (_id_of_variable, _made) if isinstance(lock, ContextVar) else (_id_of, _sent)


def _new_lock(made_id: str, make: Callable[..., object], *args: object) -> object:
    """Return the lock of this process for one of another, the same each time."""
    found = _sent.get(made_id)
    if found is None:
        found = _made.get(made_id)
    if found is None:
        found = _made.setdefault(made_id, make(*args))
        ids, _ = _books_of(found)
        ids[found] = made_id
    return found


def with_new_locks(members: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a function, or the members of a class, as they are to be sent."""
    kinds = recreated_types()
    return {k: _NewLock(v) if type(v) in kinds else v for k, v in members.items()}
