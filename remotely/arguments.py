"""Checks of the arguments of public functions, with errors that suggest the closest name."""

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from remotely.other_names import advice

P = ParamSpec("P")
R = TypeVar("R")

MOST = 10**12  # the largest number in the master's messages, except bytes


def number(name: str, value: object, least: int = 0) -> None:
    """Raise ValueError unless a value is a number from `least` to MOST."""
    if _is_one_of(value, (int, float)) and least <= value <= MOST:  # type: ignore[operator]
        return
    raise ValueError(f"{name}={value!r} must be a number, at least {least}")


def whole_number(name: str, value: object, least: int = 0) -> None:
    """Raise ValueError unless a value is a whole number from `least` to MOST."""
    if _is_one_of(value, (int,)) and least <= value <= MOST:  # type: ignore[operator]
        return
    raise ValueError(f"{name}={value!r} must be a whole number, at least {least}")


def of_type(name: str, value: object, wanted: type | tuple[type, ...], what: str) -> None:
    """Raise TypeError unless a value has the wanted type, which `what` describes."""
    if not isinstance(value, wanted):
        raise TypeError(f"{name}={value!r} must be {what}")


def not_empty(name: str, value: object) -> None:
    """Raise ValueError for an empty text: it names nothing, and what is not given is None."""
    if value == "":
        raise ValueError(f"{name}='' names nothing: leave it out, or give None, for the default")


def packages(name: str, value: object) -> tuple[str, ...]:
    """Return packages in order.  Raises TypeError unless they are a list, ValueError for a wrong
    one: an option of the installer is none."""
    of_type(name, value, (list, tuple, set), 'a list: ["gym"]')
    for each in value:  # type: ignore[attr-defined]
        if not isinstance(each, str) or not each.strip() or each.lstrip().startswith("-"):
            raise ValueError(f"{name} has {each!r}, which is no package, as 'gymnasium==0.29.1'")
    return tuple(sorted(value))  # type: ignore[call-overload]


def _is_one_of(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)  # True is an int too


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean 'cpus'?"; "" if no known name is close."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else ""


def signature_of(function: Callable[..., Any], follow_wrapped: bool = True) -> inspect.Signature:
    """Return the signature of a function or class, even if its annotations have undefined names.

    Python 3.14 evaluates annotations here, and would raise NameError.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format  # noqa: PLC0415 - as new as that

        return inspect.signature(
            function, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF
        )
    return inspect.signature(function, follow_wrapped=follow_wrapped)


def suggests(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that an unknown keyword argument raises an error with a suggestion."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - set(known):
            known_elsewhere = advice(f"{function.__name__}.{name}")
            hint = known_elsewhere or did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise TypeError(f"remotely.{function.__name__}() has no parameter {name!r}; {hint}")
        return function(*args, **kwargs)

    return checked
