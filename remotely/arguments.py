"""Bad arguments of public functions: what is wrong, and the closest name that exists."""

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from remotely.other_names import advice

P = ParamSpec("P")
R = TypeVar("R")

MOST = 10**12  # as much as the master's messages carry of anything but bytes


def number(name: str, value: object, least: int = 0) -> None:
    """Refuse what is no number from `least` to MOST.  Raises ValueError."""
    if _is_one_of(value, (int, float)) and least <= value <= MOST:  # type: ignore[operator]
        return
    raise ValueError(f"{name}={value!r}: it is to be a number from {least} up")


def whole_number(name: str, value: object, least: int = 0) -> None:
    """Refuse what is no whole number from `least` to MOST.  Raises ValueError."""
    if _is_one_of(value, (int,)) and least <= value <= MOST:  # type: ignore[operator]
        return
    raise ValueError(f"{name}={value!r}: it is to be a whole number from {least} up")


def of_type(name: str, value: object, wanted: type | tuple[type, ...], what: str) -> None:
    """Refuse what is of another type; `what` names the one wanted.  Raises TypeError."""
    if not isinstance(value, wanted):
        raise TypeError(f"{name}={value!r}: it is to be {what}")


def _is_one_of(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)  # True is an int too


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'cpus'?", or nothing if no name is near."""
    nearest = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean {nearest[0]!r}?" if nearest else ""


def signature_of(function: Callable[..., Any], follow_wrapped: bool = True) -> inspect.Signature:
    """Return the signature of a function or a class, whatever its annotations name.

    Python 3.14 evaluates them now, and would raise NameError for what is not there.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format  # noqa: PLC0415 - as new as that

        return inspect.signature(
            function, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF
        )
    return inspect.signature(function, follow_wrapped=follow_wrapped)


def suggests(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function name the nearest of its parameters where it is given an unknown one."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - set(known):
            known_elsewhere = advice(f"{function.__name__}.{name}")
            hint = known_elsewhere or did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise TypeError(f"remotely.{function.__name__}() has no parameter {name!r}; {hint}")
        return function(*args, **kwargs)

    return checked
