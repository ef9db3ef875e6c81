"""One call that any member of a pool may run, and the future that its caller has of it.

A job may wait, and may be sent again if its process died before it began.  So it takes its
arguments as they are when it is submitted, unless nobody can change them.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice
from types import BuiltinFunctionType, FunctionType
from typing import Any

from remotely.errors import NotPicklable
from remotely.futures.future import CallFuture
from remotely.futures.reference import Put, Reference
from remotely.values import codec
from remotely.values.picklers import goes_by_name

# Nobody can change these.  Of a class that inherits from one of them, anything may be changed.
_CONSTANTS = frozenset((type(None), bool, int, float, complex, str, bytes, range))
_BY_NAME = frozenset((type, FunctionType, BuiltinFunctionType))  # if they can be found by it
_ARRIVE_AS_VALUES = (CallFuture, Reference, Put)
LOOKED_AT = 100  # items of a container, for these; to look at a million takes longer than to copy


class Job:
    """A call of a method.

    retries  how often it may be repeated if its outcome is lost
    names    of the arguments, in an error about one that does not pickle
    """

    __slots__ = (
        "args",
        "future",
        "has_begun",
        "kwargs",
        "lost",
        "method",
        "names",
        "retries",
        "sent",
    )

    def __init__(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        retries: int,
        names: tuple[str, ...],
    ) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.retries = retries
        self.names = names
        self.future: Future[Any] = Future()
        self.has_begun = False
        self.sent = 0.0
        self.lost: BaseException | None = None  # the error of an earlier try

    def copy_arguments(self, put: Callable[[Any], Any]) -> None:
        """Take the arguments as they are now."""
        self.args, self.kwargs = copied(self.args, self.kwargs, put)

    def begin(self) -> bool:
        """Return whether it is to run: false if its caller has cancelled it."""
        if not self.has_begun:
            self.has_begun = self.future.set_running_or_notify_cancel()
        return self.has_begun

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Give its caller the outcome.  Hold no lock: this runs the user's callbacks."""
        if error is None:
            self.future.set_result(value)
        elif self.begin():  # else it was cancelled in time
            self.future.set_exception(self._named(error))

    def _named(self, error: BaseException) -> BaseException:
        """Return the error; if an argument does not pickle, the one that names it."""
        if isinstance(error, NotPicklable):
            try:
                codec.encode(self.args, self.names)
            except NotPicklable as named:
                return named.with_traceback(None)
        return error


def copied(
    args: tuple[Any, ...], kwargs: dict[str, Any], put: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments that arrive as these are now."""
    return (
        tuple(_copied(value, put) for value in args),
        {name: _copied(value, put) for name, value in kwargs.items()},
    )


def _copied(value: Any, put: Callable[[Any], Any]) -> Any:
    if _is_constant(value):
        return value
    kind = type(value)
    if kind in (tuple, list) and _has_ref(value):
        return kind(_copied(item, put) for item in value)
    if kind is dict and _has_ref(value.values()) and all(map(_is_constant, value)):
        return {key: _copied(item, put) for key, item in value.items()}
    return put(value)


def _has_ref(items: Iterable[Any]) -> bool:
    """Tell whether a value that was put is among some items: it is not to be copied once more."""
    return any(isinstance(item, _ARRIVE_AS_VALUES) for item in islice(items, LOOKED_AT))


def _is_constant(value: Any) -> bool:
    """Tell whether nobody can change what arrives."""
    kind = type(value)
    if kind is tuple:
        return all(map(_is_constant, value))
    if kind in _BY_NAME:
        return goes_by_name(value)
    return kind in _CONSTANTS or isinstance(value, _ARRIVE_AS_VALUES)
