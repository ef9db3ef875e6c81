"""Members of classes: a function, and what may be around it."""

import functools
from collections.abc import Iterator
from typing import Any


def layers(member: Any) -> Iterator[Any]:
    """Yield a member of a class and what it holds, from the outermost descriptor to the function.

    A `functools.partial` counts as a descriptor.
    """
    while True:
        yield member
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        elif isinstance(
            member, functools.partialmethod | functools.partial | functools.singledispatchmethod
        ):
            member = member.func
        else:
            return


def function_of(member: Any) -> Any:
    """Return the function in a member of a class, without the descriptors around it."""
    *_, function = layers(member)
    return function


def is_method(member: Any) -> bool:
    """Tell whether a member of a class is called, and not read."""
    if function_of(member) is not member:
        return True
    return callable(member) and not isinstance(member, type)
