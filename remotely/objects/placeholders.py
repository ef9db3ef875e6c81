"""Placeholders for objects that must not be sent from their actor as copies.

    the actor has                                   it sends             the client makes
    itself: `return self`, `yield self`, `a += 1`   SelfPlaceholder      a handle of the actor
    a function or method, read as an attribute      RoutinePlaceholder   a method of the handle
    a generator; the iterator of `__iter__`         StreamToken          a stream
    a call that its caller cancelled                CancelledPlaceholder the call is cancelled

Futures resolve all of them but the second (futures/future.py).

A copy would be silently wrong: calling it would change only the copy.  So functions, methods and
`functools.partial`s of them stay in the actor, wherever the attribute comes from: the instance, a
property, or the `__getattr__` of a wrapper.  Every other value is sent.  That includes classes and
callable objects such as networks, which are read for their contents.
"""

import functools
import inspect
from typing import Any

from remotely.objects.marks import mark_as, marks_of


class RoutinePlaceholder:
    """Stands for a function or method that stays in the actor; has its docstring and marks."""

    def __init__(self, function: Any) -> None:
        self.__doc__ = inspect.getdoc(function)
        mark_as(self, marks_of(function))


def stays(value: object) -> bool:
    """Tell whether an attribute is a function or method, which runs in the actor."""
    if isinstance(value, type):
        return False
    return isinstance(value, functools.partial) or inspect.isroutine(value)
