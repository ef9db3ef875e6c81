"""The one way to a retry: `@remotely.idempotent(retries=n)` on a method.

A call whose actor died, or whose machine was lost, may have run.  Only who wrote the method knows
whether running it again does harm; who says that it does none has such calls made again, in the
actor's next life (`max_restarts`) or along a new connection.  What the method itself raises is an
answer, and is never tried again.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from remotely.errors import ActorDied, WorkerLost
from remotely.future import CallFuture

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__remotely_retries__"


def idempotent(*, retries: int = 1) -> Callable[[F], F]:
    """Mark a method whose call may be made again, at most `retries` times, if its outcome is lost.

    Raises ValueError for less than one retry.
    """
    if type(retries) is not int or retries < 1:
        raise ValueError(f"retries={retries!r}: it is to be a whole number from 1 up")

    def mark(method: F) -> F:
        setattr(method, _MARK, retries)
        return method

    return mark


def retries_of(method: object) -> int:
    """Return how often a call of a method may be made again; most of them never."""
    return getattr(method, _MARK, 0)


def copy_mark(method: object, stand_in: object) -> None:
    """Have `stand_in` count as marked if `method` is."""
    if retries := retries_of(method):
        setattr(stand_in, _MARK, retries)


class RetriedFuture(CallFuture[Any]):
    """The future of a call that is made again if its outcome is lost; `again` sends it."""

    def __init__(
        self, what: str, keep: object, again: Callable[[CallFuture[Any]], None], retries: int
    ) -> None:
        super().__init__(what, keep)
        self._again: Callable[[CallFuture[Any]], None] | None = again
        self._left = retries

    def lose(self, error: BaseException) -> None:
        """Send the call again, if that may help.

        On a thread of its own: a new life may be long in coming, and this may be the client's loop.
        """
        if self.answered:
            return
        if self._left and isinstance(error, ActorDied | WorkerLost):
            self._left -= 1
            self.call_id = 0
            self.receiver = None
            threading.Thread(target=self._send_again, name="remotely-retry", daemon=True).start()
        else:
            super().lose(error)

    def _send_again(self) -> None:
        assert self._again is not None
        try:
            self._again(self)
        except Exception as error:
            super().lose(error.with_traceback(None))

    def _finish(self) -> None:
        self._again = None  # it holds the arguments
        super()._finish()
