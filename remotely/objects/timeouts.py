"""How long callers wait for a method: `@remotely.timeout(seconds)`."""

from collections.abc import Callable
from typing import Any, TypeVar

from remotely import arguments

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__remotely_timeout_s__"


def timeout(seconds: float) -> Callable[[F], F]:
    """Have callers of a method wait for at most `seconds`, counted from when each call is made.

    A plain call then raises CallTimeout.  If it had not begun it is taken back, and never runs;
    if it has begun it goes on over there (`still_running`).  `result()` and `exception()` of a
    submitted call raise CallTimeout too, unless they are given a timeout of their own, and take
    nothing back.  Raises ValueError if `seconds` is no number above zero.
    """
    arguments.number("seconds", seconds)
    if not seconds:
        raise ValueError("seconds=0: no call is answered in no time; leave the timeout out")

    def mark(method: F) -> F:
        setattr(method, _MARK, float(seconds))
        return method

    return mark


def timeout_of(method: object) -> float | None:
    """Return for how long callers wait for a method, in seconds; None if there is no limit."""
    return getattr(method, _MARK, None)


def copy_timeout(method: object, placeholder: object) -> None:
    """Give `placeholder` the timeout of `method`, if it has one."""
    if (seconds := timeout_of(method)) is not None:
        setattr(placeholder, _MARK, seconds)
