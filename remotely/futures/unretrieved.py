"""Errors that nobody looked at: told once, when the future that holds one is dropped.

A script that submits and forgets would go on in silence with what a failed call has left.  Only a
future with an error gets an `Unseen`, so a value costs nothing.  The last reference may go on any
thread, amid anything, so whoever is told must not wait or take locks.
"""

import traceback
from collections.abc import Callable

from remotely.errors import RemoteTraceback

Tell = Callable[[str, BaseException], None]  # which call, and what came of it


class Unseen:
    """Goes with a future, until somebody has looked at its error: then it is told `seen`.

    It tells nobody before it is armed, so that one too many does no harm.
    """

    __slots__ = ("_error", "_is_seen", "_tell", "_what")

    def __init__(self, what: str, error: BaseException) -> None:
        self._what = what
        self._error = error
        self._tell: Tell | None = None
        self._is_seen = False

    def arm(self, tell: Tell) -> None:
        self._tell = tell

    def seen(self) -> None:
        self._is_seen = True

    def __del__(self) -> None:
        if self._tell is not None and not self._is_seen:
            self._tell(self._what, self._error)


def source(what: str, error: BaseException) -> str:
    """Return what the same errors of a group's members have in common."""
    _, _, method = what.partition(".")
    return f"{method} {type(error).__name__} {'' if hasattr(error, 'may_have_run') else error}"


def sentence(what: str, error: BaseException) -> str:
    """Return what to print of it."""
    cause = error.__cause__
    if isinstance(cause, RemoteTraceback):
        trace = str(cause.args[0])
    else:
        trace = "".join(traceback.format_exception(error))
    return (
        f"remotely: {what} failed, and its future was dropped unseen; to handle the error, call "
        f"result() or exception() on what submit returns\n{trace.rstrip()}"
    )
