"""The nearest of the names that there are, for one that there is not."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'cpus'?", or nothing if no name is near."""
    nearest = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {nearest[0]!r}?" if nearest else ""


def suggests(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function name the nearest of its parameters where it is given an unknown one."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - set(known):
            hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise TypeError(f"remotely.{function.__name__}() has no parameter {name!r}; {hint}")
        return function(*args, **kwargs)

    return checked
