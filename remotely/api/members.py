"""What a class has under a name, as handles and groups see it without running anything of it."""

import functools
from typing import Any

from remotely.objects.ray_hints import static_member
from remotely.objects.special import defines

MISSING = object()

# Notebooks and similar tools ask any object for these.  The last two are rich's, which takes an
# object that has every attribute for a fake.
_PROBES = ("_ipython_", "_repr_", "awehflow", "aihwerij")
_WRAPPED = (staticmethod, classmethod, functools.partialmethod, functools.singledispatchmethod)


def member_of(cls: type, name: str) -> Any:
    """Return a member of a class, or MISSING if only its objects may have it.

    Raises AttributeError for special names that the class does not have: those are not remote.
    """
    member = static_member(cls, name, MISSING)
    special = (name.startswith("__") and name.endswith("__")) or name.startswith(_PROBES)
    if member is MISSING and special:
        raise AttributeError(name)
    return member


def is_method(member: Any) -> bool:
    if isinstance(member, _WRAPPED):
        return True
    return callable(member) and not isinstance(member, type)


def check_slots(cls: type, name: str) -> None:
    """Refuse what the class refuses.  The actor would not: by value, a class loses its slots."""
    has_only_slots = cls.__dictoffset__ == 0 and not defines(cls, "__setattr__")
    if has_only_slots and static_member(cls, name, MISSING) is MISSING:
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
