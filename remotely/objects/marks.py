"""Marks on methods: `@remotely.idempotent(retries=n)`, `@remotely.timeout(s)`, `@remotely.method`.

A call whose actor died, or whose machine was lost, may have run.  Only the author of the method
knows whether it is safe to run it again, so only marked methods are retried: see
calling/send_queue.py.

A marked method is still the same function, but type checkers see a MarkedMethod, which has a
`submit`.  For a method without another mark, `@remotely.method` does only that.  Refused: a mypy
plugin, because pyright supports none; generated stubs, which add a step before each check; a base
class, which cannot describe a subclass's methods.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from remotely import arguments
from remotely.arguments import suggests
from remotely.objects.members import layers

if TYPE_CHECKING:  # this file is pure: it must not import threading
    from remotely.futures.future import CallFuture
    from remotely.futures.stream import Stream

P = ParamSpec("P")
R = TypeVar("R")


class BoundMethod(Protocol[P, R]):
    """The type of `handle.method`: call it and wait, or `submit` the call and continue."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "CallFuture[R]": ...


class MarkedMethod(Protocol[P, R]):
    """The type of a marked method in its class."""

    def __call__(self, actor: Any, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __get__(self, actor: None, cls: type, /) -> Callable[Concatenate[Any, P], R]: ...
    @overload
    def __get__(self, actor: object, cls: type | None = None, /) -> BoundMethod[P, R]: ...


class Mark(Protocol):
    """The type of a mark.  A call awaits a coroutine, and returns a stream for a generator."""

    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> MarkedMethod[P, R]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], Iterator[R] | AsyncIterator[R]], /
    ) -> "MarkedMethod[P, Stream[R]]": ...
    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> MarkedMethod[P, R]: ...


def _method(method: Any, /) -> Any:
    """Mark a method for type checkers: `handle.method.submit(...)` has the type of its result."""
    return method


_method.__name__ = _method.__qualname__ = "method"
method: Mark = _method


class Marks(NamedTuple):
    """What the marks of a method ask for.

    retries    the maximum number of retries of a call
    timeout_s  how long callers wait for a call; None if there is no limit
    """

    retries: int = 0
    timeout_s: float | None = None


NONE = Marks()
_NAME = "__remotely_marks__"


def marks_of(member: object) -> Marks:
    """Return the marks of a method, function or member of a class, wherever they are: above or
    below `@classmethod` and the like."""
    for layer in layers(member):
        if isinstance(marks := getattr(layer, _NAME, NONE), Marks) and marks != NONE:
            return marks
    return NONE


def mark_as(member: Any, marks: Marks) -> None:
    """Give a member these marks in place of its own.

    A class or static method gets them in its function, without which they would not be pickled.
    """
    while isinstance(member, staticmethod | classmethod):
        member = member.__func__
    try:
        setattr(member, _NAME, marks)
    except AttributeError:
        raise TypeError(f"{member!r} cannot be marked: mark the function in its class") from None


@suggests
def idempotent(*, retries: int = 1) -> Mark:
    """Mark a method whose calls may be retried, at most `retries` times, if their outcome is lost.

    Raises ValueError for fewer than one retry.  `remote_class` raises TypeError if it marks what is
    not called on a handle, such as a property, or a method that yields.
    """
    arguments.whole_number("retries", retries, 1)

    def mark(method: Any, /) -> Any:
        mark_as(method, marks_of(method)._replace(retries=retries))
        return method

    return mark


def timeout(seconds: float) -> Mark:
    """Limit how long callers of a method wait: at most `seconds` after each call is made.

    A plain call then raises CallTimeout.  If it has not begun, it is cancelled and never runs; if
    it has begun, it continues in the actor (`still_running`).  `result()` and `exception()` of a
    submitted call raise CallTimeout too, unless given a timeout of their own, and so does `await`,
    but they cancel nothing.  A call of a pool is made when it is submitted.
    Raises ValueError unless `seconds` is a positive number, and TypeError as `idempotent` does.
    """
    arguments.number("seconds", seconds)
    if not seconds:
        raise ValueError("seconds=0: no call can be answered in time; omit the timeout")

    def mark(method: Any, /) -> Any:
        mark_as(method, marks_of(method)._replace(timeout_s=float(seconds)))
        return method

    return mark
