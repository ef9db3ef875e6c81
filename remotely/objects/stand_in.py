"""What an actor answers in the place of what must not leave it as a copy.

    the actor has                                         it answers     its client makes of that
    itself: `return self`, `__enter__`, `a += 1`          Itself         a handle of the actor
    a function or method, read as an attribute            Routine        a method of the handle
    a generator; the iterator of `__iter__`               stream.Token   a stream

A copy would be silently wrong: what is called on it changes the copy alone.  So functions, methods
and `functools.partial`s of them stay, wherever the attribute comes from: the instance, a property,
or the `__getattr__` of a wrapper.  Every other value travels: a class, and an object that is merely
callable, such as a network, are wanted for their contents.
"""

import functools
import inspect
from typing import Any

from remotely.objects.idempotent import copy_mark


class Itself:
    """The actor's own object, as the result of one of its methods."""


class Routine:
    """A function or method that stays over there; its docstring and its mark travel."""

    def __init__(self, function: Any) -> None:
        self.__doc__ = inspect.getdoc(function)
        copy_mark(function, self)


def stays(value: object) -> bool:
    """Tell whether an attribute is a function or method, which runs where it is."""
    if isinstance(value, type):
        return False
    return isinstance(value, functools.partial) or inspect.isroutine(value)


def function_of(member: Any) -> Any:
    """Return the function in a member of a class, from under what `functools` and Python put on."""
    while True:
        if isinstance(member, functools.partialmethod):
            member = member.func
        elif isinstance(member, staticmethod | classmethod):
            member = member.__func__
        elif isinstance(member, functools.singledispatchmethod):
            member = member.func
        else:
            return member
