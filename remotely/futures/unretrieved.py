"""Errors that nobody retrieved: reported once, when the future that holds the error is dropped.

Otherwise a script that submits calls and forgets them would silently go on after a failure.  Only a
future with an error gets an `UnretrievedReport`, so a value costs nothing.  The last reference may
go on any thread, in the middle of anything, so the `OnUnretrieved` callback must not wait or take locks.
"""

import traceback
from collections.abc import Callable

from remotely.errors import RemoteTraceback

OnUnretrieved = Callable[[str, BaseException], None]  # which call, and its error


class UnretrievedReport:
    """Goes with a future that holds an error, and reports the error unless it is cancelled.

    It reports nothing until it is armed, so that creating one too many does no harm.
    """

    __slots__ = ("_error", "_is_cancelled", "_tell", "_what")

    def __init__(self, what: str, error: BaseException) -> None:
        self._what = what
        self._error = error
        self._tell: OnUnretrieved | None = None
        self._is_cancelled = False

    def arm(self, tell: OnUnretrieved) -> None:
        self._tell = tell

    def cancel(self) -> None:
        """Report nothing: somebody has retrieved the error."""
        self._is_cancelled = True

    def __del__(self) -> None:
        if self._tell is not None and not self._is_cancelled:
            self._tell(self._what, self._error)


def report_key(what: str, error: BaseException) -> str:
    """Return what the same error of several members of a group has in common."""
    _, _, method = what.partition(".")
    return f"{method} {type(error).__name__} {'' if hasattr(error, 'may_have_run') else error}"


def report_text(what: str, error: BaseException) -> str:
    """Return what to print about an error that nobody retrieved."""
    cause = error.__cause__
    if isinstance(cause, RemoteTraceback):
        trace = str(cause.args[0])
    else:
        trace = "".join(traceback.format_exception(error))
    return (
        f"remotely: {what} failed, and the error was never retrieved; to handle it, call result() "
        f"or exception() on the future that submit returns\n{trace.rstrip()}"
    )
