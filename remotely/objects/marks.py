"""Marks on methods, by their author: `@remotely.idempotent(retries=n)` and `@remotely.timeout(s)`.

A call whose actor died, or whose machine was lost, may have run.  Only the author of the method
knows whether it is safe to run it again, so the mark is the only way to a retry.  What becomes of
such calls: calling/send_queue.py.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from remotely import arguments
from remotely.arguments import suggests

F = TypeVar("F", bound=Callable[..., Any])

_RETRIES, _TIMEOUT_S = "__remotely_retries__", "__remotely_timeout_s__"


@suggests
def idempotent(*, retries: int = 1) -> Callable[[F], F]:
    """Mark a method whose call may be repeated, at most `retries` times, if its outcome is lost.

    Raises ValueError for fewer than one retry.
    """
    arguments.whole_number("retries", retries, 1)

    def mark(method: F) -> F:
        setattr(method, _RETRIES, retries)
        return method

    return mark


def retries_of(method: object) -> int:
    """Return how often a call of a method may be repeated: never, unless it is marked."""
    return getattr(method, _RETRIES, 0)


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
        setattr(method, _TIMEOUT_S, float(seconds))
        return method

    return mark


def timeout_of(method: object) -> float | None:
    """Return for how long callers wait for a method, in seconds; None if there is no limit."""
    return getattr(method, _TIMEOUT_S, None)


def copy_marks(method: object, placeholder: object) -> None:
    """Give `placeholder` the marks of `method`."""
    for mark in (_RETRIES, _TIMEOUT_S):
        if (value := getattr(method, mark, None)) is not None:
            setattr(placeholder, mark, value)
