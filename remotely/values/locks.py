"""Locks and their like, which do not pickle, created anew where they arrive.

They are among the globals of a function, or the members of a class, that goes by value.  Over there
each becomes one new lock, however often it arrives, as running the module again would make it.
"""

import sys
import uuid
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

_id_of: WeakKeyDictionary[object, str] = WeakKeyDictionary()
_sent: WeakValueDictionary[str, object] = WeakValueDictionary()
_made: dict[str, object] = {}  # for good: what is held must not be made once more
_RECREATED: dict[type, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {}


def recreated_types() -> dict[type, tuple[str, Callable[[Any], tuple[Any, ...]]]]:
    """Return what is created anew: its type, its maker in `threading`, and the arguments."""
    if not _RECREATED:
        threading: Any = sys.modules["threading"]  # whose locks these are; nothing locks here
        for name in ("Lock", "RLock", "local", "Condition", "Event"):
            _RECREATED[type(getattr(threading, name)())] = name, lambda made: ()
        _RECREATED[threading.Semaphore] = "Semaphore", lambda made: (made._value,)
        bounded = threading.BoundedSemaphore
        _RECREATED[bounded] = "BoundedSemaphore", lambda made: (made._initial_value,)
    return _RECREATED


class _NewLock:
    """Stands in for a lock where it is pickled."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __reduce__(self) -> tuple[Any, ...]:
        name, arguments_of = recreated_types()[type(self.lock)]
        made_id = _id_of.setdefault(self.lock, uuid.uuid4().hex)
        _sent.setdefault(made_id, self.lock)
        return _new_lock, (name, arguments_of(self.lock), made_id)


def _new_lock(name: str, args: tuple[Any, ...], made_id: str) -> object:
    """Return the lock of this process for one of another, the same each time."""
    found = _sent.get(made_id)
    if found is None:
        found = _made.get(made_id)
    if found is None:
        made = getattr(sys.modules["threading"], name)(*args)
        found = _made.setdefault(made_id, made)
        _id_of[found] = made_id
    return found


def with_new_locks(members: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a function, or the members of a class, as they are to be sent."""
    kinds = recreated_types()
    return {k: _NewLock(v) if type(v) in kinds else v for k, v in members.items()}
