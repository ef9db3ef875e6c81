"""Placeholders for objects that must not leave their actor as copies.

    the actor has                                   it sends             the client makes
    itself: `return self`, `__enter__`, `a += 1`    SelfPlaceholder      a handle of the actor
    a function or method, read as an attribute      RoutinePlaceholder   a method of the handle
    a generator; the iterator of `__iter__`         StreamToken          a stream
    a call that its caller has taken back           CancelledPlaceholder the call is cancelled

All but the second are what a future makes its outcome of (futures/future.py).

A copy would be silently wrong: calling it would change the copy only.  So functions, methods and
`functools.partial`s of them stay, wherever the attribute comes from: the instance, a property, or
the `__getattr__` of a wrapper.  Every other value travels.  That includes classes and objects that
are merely callable, such as a network: you want them for their contents.
"""

import functools
import inspect
from typing import Any

from remotely.objects.marks import copy_marks


class RoutinePlaceholder:
    """A function or method that stays in the actor; its docstring and marks travel."""

    def __init__(self, function: Any) -> None:
        self.__doc__ = inspect.getdoc(function)
        copy_marks(function, self)


def stays(value: object) -> bool:
    """Tell whether an attribute is a function or method, which runs in the actor."""
    if isinstance(value, type):
        return False
    return isinstance(value, functools.partial) or inspect.isroutine(value)


def function_of(member: Any) -> Any:
    """Return the function in a member of a class, without the wrappers around it."""
    while True:
        if isinstance(member, functools.partialmethod):
            member = member.func
        elif isinstance(member, staticmethod | classmethod):
            member = member.__func__
        elif isinstance(member, functools.singledispatchmethod):
            member = member.func
        else:
            return member
