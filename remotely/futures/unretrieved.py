"""Reports of unretrieved errors: once, when a future is dropped whose error was never retrieved.

Otherwise a script that submits calls and drops their futures would not notice failures.  Only a
future with an error gets an `UnretrievedReport`, so a value costs nothing.  The last reference may
be dropped on any thread at any moment, so an `OnUnretrieved` callback must not wait or take locks.
"""

import traceback
from collections.abc import Callable

from remotely.errors import ActorDied, RemoteTraceback, WorkerLost
from remotely.reporting.tracebacks import folded

OnUnretrieved = Callable[[str, BaseException], None]  # takes the name of the call, and its error


class UnretrievedReport:
    """Belongs to a future with an error, and reports the error when deleted, unless cancelled.

    It reports nothing until it is armed, so an unused one does no harm.
    """

    __slots__ = ("_callback", "_error", "_is_cancelled", "_what")

    def __init__(self, what: str, error: BaseException) -> None:
        self._what = what
        self._error = error
        self._callback: OnUnretrieved | None = None
        self._is_cancelled = False

    def arm(self, callback: OnUnretrieved) -> None:
        self._callback = callback

    def cancel(self) -> None:
        """Report nothing, because the error was retrieved."""
        self._is_cancelled = True

    def __del__(self) -> None:
        if self._callback is not None and not self._is_cancelled:
            self._callback(self._what, self._error)


def report_key(what: str, error: BaseException) -> str:
    """Return a key that is the same for the same error of several members of a group."""
    _, _, method = what.partition(".")
    names_actor = isinstance(error, ActorDied | WorkerLost)
    return f"{method} {type(error).__name__} {'' if names_actor else error}"


def report_text(what: str, error: BaseException) -> str:
    """Return the report of an unretrieved error."""
    cause = error.__cause__
    if isinstance(cause, RemoteTraceback):
        trace = str(cause.args[0])
    else:
        trace = folded("".join(traceback.format_exception(error)))
    return (
        f"remotely: {what} failed, and the error was never retrieved; to handle it, call result() "
        f"or exception() on the future that submit returns\n{trace.rstrip()}"
    )
