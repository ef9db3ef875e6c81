"""Marks on methods, by their author: `@remotely.idempotent(retries=n)`, `@remotely.timeout(s)`.

A call whose actor died, or whose machine was lost, may have run.  Only the author of the method
knows whether it is safe to run it again, so the mark is the only way to a retry.  What becomes of
such calls: calling/send_queue.py.

A marked method stays the function that it is.  Type checkers see a MarkedMethod: one that can be
submitted, too.  They cannot know that of a method without a mark, so `@remotely.method` is a mark
that says nothing else.  Refused: a plugin for mypy, since pyright takes none; generated stubs,
which are another step before each check; a base class, which cannot speak of a subclass's methods.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from remotely import arguments
from remotely.arguments import suggests

if TYPE_CHECKING:  # this file is pure: it reaches no thread
    from remotely.futures.future import CallFuture
    from remotely.futures.stream import Stream

P = ParamSpec("P")
R = TypeVar("R")


class BoundMethod(Protocol[P, R]):
    """The type of `handle.method`: call it and wait, or `submit` the call and go on."""

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
    """The type of a decorator that marks.  Callers wait for a coroutine, and iterate a stream."""

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

_RETRIES, _TIMEOUT_S = "__remotely_retries__", "__remotely_timeout_s__"


@suggests
def idempotent(*, retries: int = 1) -> Mark:
    """Mark a method whose call may be repeated, at most `retries` times, if its outcome is lost.

    Raises ValueError for fewer than one retry.
    """
    arguments.whole_number("retries", retries, 1)

    def mark(method: Any, /) -> Any:
        setattr(method, _RETRIES, retries)
        return method

    return mark


def retries_of(method: object) -> int:
    """Return how often a call of a method may be repeated: never, unless it is marked."""
    return getattr(method, _RETRIES, 0)


def timeout(seconds: float) -> Mark:
    """Have callers of a method wait for at most `seconds`, counted from when each call is made.

    A plain call then raises CallTimeout.  If it had not begun it is taken back, and never runs;
    if it has begun it goes on over there (`still_running`).  `result()` and `exception()` of a
    submitted call raise CallTimeout too, unless they are given a timeout of their own, and take
    nothing back.  Raises ValueError if `seconds` is no number above zero.
    """
    arguments.number("seconds", seconds)
    if not seconds:
        raise ValueError("seconds=0: no call is answered in no time; leave the timeout out")

    def mark(method: Any, /) -> Any:
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
