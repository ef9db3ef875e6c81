"""One call that any member of a pool may run, and the future that its caller has of it."""

from collections.abc import Callable
from concurrent.futures import Future
from types import BuiltinFunctionType, FunctionType
from typing import Any

from remotely.errors import NotPicklable
from remotely.futures.future import CallFuture
from remotely.futures.reference import Reference
from remotely.values import codec

# Nobody can change these after they were passed.
_CONSTANTS = (
    *(type(None), bool, int, float, complex, str, bytes, BuiltinFunctionType),
    *(CallFuture, Reference),  # they arrive as their values
)


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
        """Take the arguments as they are now: the job is sent later, or again."""
        self.args = tuple(_copied(value, put) for value in self.args)
        self.kwargs = {name: _copied(value, put) for name, value in self.kwargs.items()}

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


def _copied(value: Any, put: Callable[[Any], Any]) -> Any:
    return value if _is_constant(value) else put(value)


def _is_constant(value: Any) -> bool:
    if type(value) is tuple or (type(value) is dict and not value):
        return all(map(_is_constant, value))
    if type(value) is FunctionType:
        return value.__closure__ is None
    return isinstance(value, _CONSTANTS)
