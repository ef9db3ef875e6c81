"""The only way to a retry: `@remotely.idempotent(retries=n)` on a method.

A call whose actor died, or whose machine was lost, may have run.  Only the author of the method
knows whether it is safe to run it again.  What becomes of such calls: calling/send_queue.py.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from remotely import arguments
from remotely.arguments import suggests

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__remotely_retries__"


@suggests
def idempotent(*, retries: int = 1) -> Callable[[F], F]:
    """Mark a method whose call may be repeated, at most `retries` times, if its outcome is lost.

    Raises ValueError for fewer than one retry.
    """
    arguments.whole_number("retries", retries, 1)

    def mark(method: F) -> F:
        setattr(method, _MARK, retries)
        return method

    return mark


def retries_of(method: object) -> int:
    """Return how often a call of a method may be repeated: never, unless it is marked."""
    return getattr(method, _MARK, 0)


def copy_mark(method: object, placeholder: object) -> None:
    """Mark `placeholder` if `method` is marked."""
    if retries := retries_of(method):
        setattr(placeholder, _MARK, retries)
